"""Connections that a caller names when it opens blocks, for the node to send them there unasked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.errors import Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.direct import Pages
from kvstore.transfer.filling import Filling
from kvstore.transfer.lanes import Lane, Lanes, shares
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots

Straight: TypeAlias = Callable[
    [SlotLayout, Memory, Ints, npt.NDArray[np.int32], Fragment], Pages | None
]
"""Blocks where they belong in the caller's memory, if bytes may go straight there."""


class TcpAhead:
    """As `protocol.Ahead`. What is not taken is not waited for: its connections are hung up."""

    def __init__(self, lanes: Lanes, straight: Straight, taken: Sequence[Lane]) -> None:
        self._lanes, self._straight, self._taken = lanes, straight, list(taken)
        self.connections = [lane.number for lane in taken]
        self.blocks = 0

    @classmethod
    def of(
        cls,
        lanes: Lanes,
        straight: Straight,
        layout: SlotLayout,
        count: int,
        fragment: Fragment,
    ) -> TcpAhead | None:
        """As many connections as pay, if they can be spared now; None where there is none, or
        where the node does not know them by number."""
        taken: list[Lane] = []
        try:
            while len(taken) < lanes.paying(layout, count, fragment):
                taken.append(lanes.spare())
        except Unavailable:
            pass  # fewer do, and where the node cannot be reached, that is found out by asking
        except BaseException:
            cls(lanes, straight, taken).close()
            raise
        ahead = cls(lanes, straight, taken)
        if all(ahead.connections) and ahead.connections:
            ahead.blocks = count
            return ahead
        ahead.close()
        return None

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        assert len(slots) == self.blocks, "all that come are taken"
        direct = self._straight(layout, memory, starts, slots.tokens, fragment)
        job = Filling(direct, layout, slots, memory, starts, fragment)
        each = zip(list(self._taken), shares(self.blocks, len(self._taken)), strict=True)
        self._lanes.together([partial(self._fill, job, lane, rows) for lane, rows in each])
        self.blocks = 0
        return job.good

    def _fill(self, job: Filling, lane: Lane, rows: Ints) -> None:
        with self._lanes.calling(lane):
            self._taken.remove(lane)
            if len(rows):
                job.unasked(lane, rows)

    def close(self) -> None:
        taken, self._taken = self._taken, []
        for lane in taken:
            if self.blocks:
                self._lanes.drop(lane)
            else:
                self._lanes.give(lane)
