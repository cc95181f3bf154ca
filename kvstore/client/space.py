"""A namespace as one client uses it: its spec, its digest, and the layout of each group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvstore.block import Chain
from kvstore.layout import SlotLayout
from kvstore.spec import KVSpec
from kvstore.transfer.protocol import Ints, Slots


@dataclass(frozen=True, slots=True)
class Space:
    """One group of a namespace."""

    spec: KVSpec
    digest: bytes
    group: int
    layout: SlotLayout

    @classmethod
    def of(cls, spec: KVSpec, group: int) -> Space:
        return cls(spec, spec.digest, group, SlotLayout.of(spec, group))


def starts_of(chain: Chain, first: int = 0) -> Ints:
    """Each block's first token, where the chain begins at block `first` of its sequence."""
    return (first + np.arange(len(chain), dtype=np.int64)) * chain.block_tokens


def slots_of(offsets: object, generations: object, tokens: object) -> Slots:
    """The columns of a reply as `Slots`."""
    return Slots(
        np.array(offsets, dtype=np.int64),
        np.array(generations, dtype=np.uint64),
        np.array(tokens, dtype=np.int32),
    )
