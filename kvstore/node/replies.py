"""What another node answers, in the terms in which blocks are moved, once it makes sense.

No size and no count that it names is used before it is known to be one that can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstore.errors import Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import HANDLE_BYTES_MAX, HASH_BYTES, ROOT_BYTES
from kvstore.transfer.protocol import Slots
from kvstore.wire.v1 import kv_pb2 as pb

_INT64_MAX = (1 << 63) - 1


def hits_of(reply: pb.OpenReply, asked: int, layout: SlotLayout) -> list[int]:
    """The rows of an answer to `asked` hashes that are blocks. Raises `Unavailable`, for all of
    them, where a row is not what a node says of a block of this layout."""
    columns = (
        *(reply.outcomes, reply.slot_offsets, reply.generations, reply.tokens),
        *(reply.roots, reply.handles, reply.parents, reply.origins),
    )
    if any(len(column) != asked for column in columns):
        raise Unavailable(f"it answered to {asked} hashes with other counts")
    rows = [i for i, one in enumerate(reply.outcomes) if one == pb.HIT]
    sizes = {len(reply.handles[i]) for i in rows}
    good = (
        len(sizes) <= 1
        and all(0 < size <= HANDLE_BYTES_MAX for size in sizes)
        and all(0 < reply.tokens[i] <= layout.block_tokens for i in rows)
        and all(len(reply.roots[i]) in (0, ROOT_BYTES) for i in rows)
        and all(len(reply.parents[i]) in (0, HASH_BYTES) for i in rows)
        and all(reply.slot_offsets[i] <= _INT64_MAX for i in rows)
    )
    if not good:
        raise Unavailable("it described a block as none of this layout can be")
    return rows


def sealed_of(reply: pb.OpenReply, rows: Sequence[int]) -> list[int]:
    """Of these rows, those that are whole and have a root to be proven by."""
    return [i for i in rows if any(reply.roots[i])]


def slots_of(reply: pb.OpenReply, rows: Sequence[int]) -> Slots:
    """The slots of these rows, which `hits_of` has named."""
    handles = np.empty(len(rows), dtype=object)
    handles[:] = [reply.handles[i] for i in rows]
    roots = b"".join(reply.roots[i].rjust(ROOT_BYTES, b"\0") for i in rows)
    return Slots(
        np.array([reply.slot_offsets[i] for i in rows], dtype=np.int64),
        np.array([reply.generations[i] for i in rows], dtype=np.uint64),
        np.array([reply.tokens[i] for i in rows], dtype=np.int32),
        handles,
        np.array(list(roots), dtype=np.uint8).reshape(-1, ROOT_BYTES),
    )
