"""The caller's memory while blocks come into it, some of them on each connection.

Bytes go straight to their pages where they may; elsewhere they pass through a place in the
connection's own buffer. Either way what is not proven is not good, and what passes through a buffer
reaches no page unproven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.kernels import strips
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.direct import Pages
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.landing import Landing
from kvstore.transfer.lanes import Lane
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots

_Way: TypeAlias = Callable[[Sequence[bytes], Landing, Ints, Fragment], Iterator[Ints]]


class Filling:
    """A fragment of blocks on its way to memory. `good` says of which it is there and proven."""

    def __init__(
        self,
        direct: Pages | None,  # all of them where they belong, if bytes may go straight there
        layout: SlotLayout,
        slots: Slots,
        memory: Memory,
        starts: Ints,
        fragment: Fragment,
    ) -> None:
        self._direct, self._layout, self._slots = direct, layout, slots
        self._memory, self._starts, self._fragment = memory, starts, fragment
        self.good: Mask = np.zeros(len(slots), dtype=bool)

    def by_asking(self, lane: Lane, rows: Ints) -> None:
        """Ask for these blocks on a connection, and take them."""
        self._take(lane, lane.read, rows)

    def unasked(self, lane: Lane, rows: Ints) -> None:
        """Take these blocks, which the node sends on a connection by itself."""
        self._take(lane, lane.landed, rows)

    def _take(self, lane: Lane, way: _Way, rows: Ints) -> None:
        some, direct, part = self._slots.pick(rows), self._direct, self._fragment
        handles = some.handles.tolist()
        if direct is not None:
            for came in way(handles, direct, rows, part):
                there = rows[came]
                self.good[there] = direct.proven(there, part, some.roots[came])
            return
        staged = Staged(lane, self._layout, some.tokens, self._memory, self._starts[rows], part)
        for came in way(handles, staged, np.arange(len(rows)), part):
            sound = came[staged.vouched(came, some.roots[came])]
            self.good[rows[sound]] = staged.scatter(sound)


class Staged(Landing):
    """A landing in a lane's own buffer, whose few places blocks take in turn.

    Strip tables lie before the payloads: the kernels look for both in one run of memory.
    """

    def __init__(
        self,
        lane: Lane,
        layout: SlotLayout,
        tokens: npt.NDArray[np.int32],
        memory: Memory,
        starts: Ints,
        fragment: Fragment,
    ) -> None:
        places = max(1, min(len(tokens), lane.staging_bytes // layout.place_bytes))
        head = 8 * layout.strips * places
        room = lane.room(head + layout.place_bytes * places)
        self._place = np.arange(len(tokens)) % places
        self._places, self._pages = places, memory
        self._starts, self._fragment = starts, fragment
        self._words = room[:head].view(np.uint64).reshape(places, layout.strips)
        super().__init__(layout, room, head + layout.place_bytes * self._place, tokens)

    @property
    def places(self) -> int:
        return self._places

    def together(self, fragment: Fragment) -> int:
        return min(self._places, super().together(fragment))

    def ready(self, rows: Ints, fragment: Fragment) -> None:
        """The caller's pages -> their places, hashed on the way."""
        self._words[self._place[rows]] = 0  # entries are watermarks
        strips.gather(
            self.memory, geometry(self.layout), self._blocks(rows),
            pages(self._pages, self._fragment), self._pages.block_table, *span(self._fragment),
        )  # fmt: skip
        self.tables[rows] = self._words[self._place[rows]]

    def scatter(self, rows: Ints) -> Mask:
        """Their places -> the caller's pages; which of them are what their tables say."""
        self._words[self._place[rows]] = self.tables[rows]
        return strips.scatter(
            self.memory, geometry(self.layout), self._blocks(rows),
            pages(self._pages, self._fragment), self._pages.block_table, *span(self._fragment),
        )  # fmt: skip

    def _blocks(self, rows: Ints) -> strips.Blocks:
        tables = 8 * self.layout.strips * self._place[rows]
        return strips.Blocks(self.offsets[rows], tables, self.tokens[rows], self._starts[rows])
