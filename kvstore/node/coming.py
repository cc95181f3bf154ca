"""Blocks whose strips come into their slots over the wire, a few at a time.

Entries of the strip table are taken beside the slot, and stand in it only once the strips are there
and have these hashes: what came damaged, or half, is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from kvstore.layout import TABLE_OFFSET
from kvstore.limits import ROOT_BYTES
from kvstore.memory.arena import Arena
from kvstore.memory.order import fence
from kvstore.node.moves import Held
from kvstore.transfer.calls import Statuses
from kvstore.transfer.frames import Status
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.landing import rows_of
from kvstore.transfer.stream import DataStream


class Coming:
    """Slots of one layout, of each of which the same fragment comes."""

    def __init__(self, arena: Arena, held: Sequence[Held]) -> None:
        self._layout, self._fragment = held[0].layout, held[0].fragment
        self._words = arena.bytes.view(np.uint64)
        self._slots = np.array([one.slot.offset for one in held], dtype=np.int64)
        self._strips = rows_of(self._layout, self._fragment)
        self._tokens = np.array([one.slot.tokens for one in held], dtype=np.int32)
        self._said = np.zeros((len(held), len(self._strips)), dtype=np.uint64)
        payloads = self._slots + self._layout.head_bytes
        self._landing = HashedLanding(self._layout, arena.bytes, payloads, self._tokens)
        self._landing.leads = self._said.view(np.uint8)

    @property
    def entries(self) -> Iterator[memoryview]:
        """Room for each block's part of the strip table."""
        return (row.data.cast("B") for row in self._said)

    @property
    def payload_bytes(self) -> int:
        """Of all their strips of the fragment."""
        strips = len(self._strips)
        return sum(strips * self._layout.strip_bytes(n) for n in self._tokens.tolist())

    def receive(self, stream: DataStream) -> None:
        """Take what comes: entries, then strips, block by block. Raises `Unavailable`."""
        self._landing.receive(stream, np.arange(len(self._slots)), self._fragment)

    def settle(self) -> Statuses:
        """Of each block, once all has come: MOVED if it is what its entries say, or DAMAGED."""
        rows = np.arange(len(self._slots))
        self._landing.tables[:, self._strips] = self._said
        no_roots = np.zeros((len(rows), ROOT_BYTES), dtype=np.uint8)
        good = self._landing.proven(rows, self._fragment, no_roots)
        places = (self._slots[good] + TABLE_OFFSET)[:, None] // 8 + self._strips
        fence()  # whoever sees an entry may read the strip
        self._words[places] = self._said[good]
        statuses: npt.NDArray[np.uint8] = np.where(good, Status.MOVED, Status.DAMAGED)
        return statuses.astype(np.uint8)

    @classmethod
    def few(cls, arena: Arena, held: Sequence[Held]) -> Iterator[Coming]:
        """All of these, in this order, as many at a time as a processor's cache holds."""
        for layout, same in groupby(held, lambda one: one.layout):
            some = list(same)
            count = HashedLanding.few(layout, some[0].fragment)
            for first in range(0, len(some), count):
                yield cls(arena, some[first : first + count])
