"""Blocks as they come and go on a data connection: pieces of memory, and the proof of what came.

`Landing` is room for blocks of one layout: a run of memory with a place for each block's payload,
and beside it the strip tables that came with them. What is not proven by its table, and that by its
root where it has one, is reported as not good, and nobody uses it. Nothing here is compiled, so a
storage node can use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.layout import IDENTITY_OFFSET, TABLE_OFFSET, Fragment, SlotLayout
from kvstore.limits import MiB
from kvstore.memory.strips import strip_hash
from kvstore.transfer.protocol import Ints, Mask
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_memory import Shown

IDENTITY_BYTES = TABLE_OFFSET - IDENTITY_OFFSET
_TOGETHER_BYTES = 8 * MiB  # that land before they are looked at: a processor's cache holds them
_TABLES_BYTES = 1 * MiB  # of what says of those what they are: of tiny strips it is the most


class Landing:
    """Payload i lies at `offsets[i]` of `memory`; its identity and table are row i of `runs`."""

    def __init__(
        self,
        layout: SlotLayout,
        memory: npt.NDArray[np.uint8],
        offsets: Ints,
        tokens: npt.NDArray[np.int32],
    ) -> None:
        self.layout, self.memory, self.offsets, self.tokens = layout, memory, offsets, tokens
        # Begins on a multiple of 8, as the kernels want the tables, and identities are such.
        self.runs = np.zeros((len(offsets), layout.root_bytes), dtype=np.uint8)
        # (n, bytes): where what comes before each block's strips goes.
        self.leads: npt.NDArray[np.uint8] = self.runs

    @property
    def shown(self) -> Shown:
        """What `offsets` are counted in, as others are told of it."""
        return self.memory

    @property
    def places(self) -> int:
        """How many blocks have a place at once, the first of them next to each other in rows."""
        return len(self.offsets)

    def together(self, fragment: Fragment) -> int:
        """How many blocks may land before the first of them is done with; at least 1."""
        return self.few(self.layout, fragment)

    @staticmethod
    def few(layout: SlotLayout, fragment: Fragment) -> int:
        """How many blocks of a layout a processor's cache holds a fragment of; at least 1."""
        block = fragment.layers * fragment.heads * layout.strip_stride
        return max(1, min(_TOGETHER_BYTES // block, _TABLES_BYTES // layout.root_bytes))

    def pieces(self, row: int, fragment: Fragment) -> list[memoryview]:
        """Where a fragment of block `row` lies, in slot order."""
        view, at = self.memory.data, int(self.offsets[row])
        runs = self.layout.runs(int(self.tokens[row]), fragment)
        return [view[at + start : at + start + size] for start, size in runs]

    def entries(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """(rows, strips of the fragment): the entries that the strips have."""
        return self.hashed(rows, fragment)

    def hashed(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """The same, as they lie now."""
        view, stride = self.memory.data, self.layout.strip_stride
        where = (rows_of(self.layout, fragment) * stride).tolist()
        found = np.zeros((len(rows), len(where)), dtype=np.uint64)
        for i, row in enumerate(rows.tolist()):
            first = int(self.offsets[row])
            size = self.layout.strip_bytes(int(self.tokens[row]))
            found[i] = [strip_hash(view[first + at : first + at + size]) for at in where]
        return found

    def receive(self, stream: DataStream, rows: Ints, fragment: Fragment) -> None:
        """Fill a fragment of these blocks with what comes: of each its lead, then its pieces."""
        buffers: list[memoryview] = []
        for row in rows.tolist():
            buffers.append(self.leads[row].data)
            buffers += self.pieces(row, fragment)
        stream.receive_into(buffers)

    def send(self, stream: DataStream, rows: Ints, fragment: Fragment) -> None:
        """Send a fragment of these blocks: of each its entries, then its pieces."""
        self.ready(rows, fragment)
        strips = rows_of(self.layout, fragment)
        buffers: list[memoryview | bytes] = []
        for row in rows.tolist():
            buffers.append(self.tables[row, strips].tobytes())
            buffers += self.pieces(row, fragment)
        stream.send_all(buffers)

    def ready(self, rows: Ints, fragment: Fragment) -> None:
        """By its return these blocks, and their entries in the tables, lie here to be sent."""
        self.hash(rows, fragment)

    @property
    def tables(self) -> npt.NDArray[np.uint64]:
        """(n, strips) entries, as they came, or are to be sent: a view."""
        return self.runs.view(np.uint64)[:, IDENTITY_BYTES // 8 :]

    def hash(self, rows: Ints, fragment: Fragment) -> None:
        """Take the entries of a fragment from the strips as they lie, to be sent with them."""
        self.tables[np.ix_(rows, rows_of(self.layout, fragment))] = self.hashed(rows, fragment)

    def vouched(self, rows: Ints, roots: npt.NDArray[np.uint8]) -> Mask:
        """Which tables that came have these roots; a block that is being written has none yet."""
        good = np.asarray(~roots.any(axis=1))
        for i in np.flatnonzero(~good).tolist():
            good[i] = xxhash.xxh3_128_digest(self.runs[rows[i]]) == roots[i].tobytes()
        return np.asarray(good)

    def proven(self, rows: Ints, fragment: Fragment, roots: npt.NDArray[np.uint8]) -> Mask:
        """Which of these blocks are what their tables say, and those what their roots say."""
        good = self.vouched(rows, roots)
        known = rows[good]
        said = self.tables[np.ix_(known, rows_of(self.layout, fragment))]
        # An entry of 0 means not written, and no strip has it.
        good[good] = (said == self.entries(known, fragment)).all(axis=1)
        return good


@lru_cache(256)
def rows_of(layout: SlotLayout, fragment: Fragment) -> Ints:
    """Which strips of a block a fragment has, in slot order. Nobody changes the answer."""
    layers = np.arange(fragment.layers, dtype=np.int64)[:, None] + fragment.layer_first
    heads = np.arange(fragment.heads, dtype=np.int64) + fragment.head_first
    return (layers * layout.kv_heads + heads).ravel()


def chosen(flags: Sequence[bool] | Mask) -> Ints:
    """The rows that are marked."""
    return np.flatnonzero(np.asarray(flags)).astype(np.int64)
