"""A namespace as one client uses it: its spec, its digest, and the layout of each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvstore.block import Blocks
from kvstore.errors import Invalid
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import ROOT_BYTES, RPC_KEYS_MAX
from kvstore.spec import KVSpec
from kvstore.transfer.protocol import Ints, Slots
from kvstore.wire.v1 import kv_pb2 as pb


@dataclass(frozen=True, slots=True)
class Space:
    """One group of a namespace."""

    spec: KVSpec
    digest: bytes
    group: int
    layout: SlotLayout

    @classmethod
    def of(cls, spec: KVSpec, group: int) -> Space:
        if not 0 <= group < len(spec.groups):
            raise Invalid(f"group {group}: the spec has groups 0..{len(spec.groups) - 1}")
        return cls(spec, spec.digest, group, SlotLayout.of(spec, group))

    def blocks_from(self, chain: Blocks, first: int) -> Blocks:
        """Blocks `first` on of a chain: none where `first` is its end, as where all of it was
        matched. Raises `Invalid` where they are not of this size."""
        if chain.block_tokens != self.layout.block_tokens:
            size = self.layout.block_tokens
            raise Invalid(f"the chain has blocks of {chain.block_tokens} tokens, this group {size}")
        if not 0 <= first <= len(chain):
            raise Invalid(f"first {first}: the chain has {len(chain)} blocks")
        return chain.between(first, len(chain))


def calls(count: int, times: int = 1) -> Iterator[slice]:
    """Ranges of `count` keys, each of them no more than one call may carry where it names each so
    many times."""
    most = RPC_KEYS_MAX // times
    for first in range(0, count, most):
        yield slice(first, min(first + most, count))


def starts_of(chain: Blocks, first: int = 0) -> Ints:
    """Each block's first token, where the chain begins at block `first` of its sequence."""
    return (first + np.arange(len(chain), dtype=np.int64)) * chain.block_tokens


def slots_of(
    offsets: object,
    generations: object,
    tokens: object,
    handles: Sequence[bytes],
    roots: Sequence[bytes] = (),
) -> Slots:
    """The columns of a reply as `Slots`."""
    held = np.empty(len(handles), dtype=object)
    held[:] = handles
    known = b"".join(
        one if len(one) == ROOT_BYTES else bytes(ROOT_BYTES) for one in roots
    ) or bytes(ROOT_BYTES * len(handles))
    return Slots(
        np.array(offsets, dtype=np.int64),
        np.array(generations, dtype=np.uint64),
        np.array(tokens, dtype=np.int32),
        held,
        np.frombuffer(known, dtype=np.uint8).reshape(-1, ROOT_BYTES),
    )


def on_wire(fragment: Fragment) -> pb.Fragment:
    """A fragment as calls carry it."""
    return pb.Fragment(
        layer_first=fragment.layer_first,
        layers=fragment.layers,
        head_first=fragment.head_first,
        heads=fragment.heads,
    )
