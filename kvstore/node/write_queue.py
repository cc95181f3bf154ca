"""Blocks that are in DRAM alone and wait to be written, and callers that wait for it.

A block that somebody waits for is held until its answer, so nothing evicts it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice

from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.placement import TierView, Waiting, plan, presses
from kvstore.errors import Unavailable
from kvstore.node.blocks import Blocks
from kvstore.telemetry import Telemetry

DROPPED = "it was dropped before it was written"
NO_WAY = "it is in HBM, and was not brought to DRAM"
SWEEP_MIN = 1_024  # of a line that it is not worth to look through for blocks that were dropped
# A batch is chosen in one turn of the loop, and readers wait that long: a look costs some 1.5 us.
# So many are 16 batches, of which what is worth most goes; of more it would be found sooner.
LOOKED_MAX = 4_096


class WriteQueue:
    """The order in which blocks are written."""

    def __init__(self, blocks: Blocks, counters: Telemetry) -> None:
        self._blocks, self._counters = blocks, counters
        self._waiting: OrderedDict[Slot, int] = OrderedDict()  # -> how often it was tried
        self._acks: dict[Slot, list[asyncio.Future[None]]] = {}
        self._pressed, self._sweep_at = False, SWEEP_MIN
        self.changed = asyncio.Event()
        blocks.on_sealed = self.add
        blocks.on_used = self.add

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, slot: Slot, tries: int = 0) -> None:
        self._waiting.setdefault(slot, tries)
        self.changed.set()
        if len(self._waiting) > self._sweep_at:  # the disk may take nothing for as long as it likes
            self._forget_dropped()
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._waiting))

    async def written(self, slots: Sequence[Slot], writing: Collection[Slot]) -> None:
        """Return once all of these sealed blocks were written, or raise what one met."""
        acks = [asyncio.get_running_loop().create_future() for _ in slots]
        for slot, ack in zip(slots, acks, strict=True):
            slot.moves += 1
            self._acks.setdefault(slot, []).append(ack)
            if slot not in writing:
                self.add(slot)
        try:
            outcomes = await asyncio.gather(*acks, return_exceptions=True)
        finally:
            for slot in slots:
                self._blocks.let_go(slot)
        for one in outcomes:
            if isinstance(one, BaseException):
                raise one

    def next(self, count: int, size: int) -> list[tuple[Slot, int]]:
        """Up to so many blocks to write now, with the one that passes `size` bytes the last, and
        how often each was tried. The others keep their place in the line.

        There may be none though others wait yet: a part of the line is looked at."""
        self._pressed = presses(self._blocks.alone, self._pressed)
        front = self._front(None if self._pressed else count)
        chosen: list[tuple[Slot, int]] = []
        for move in plan(TierView(self._pressed, self._viewed(front))):
            if len(chosen) == count or size <= 0:
                break
            tries = self._waiting.pop(move.slot)
            if move.write:
                chosen.append((move.slot, tries))
                size -= self._blocks.slabs.slab_of(move.slot).slot_bytes
            else:
                self._counters.add("passed_blocks")
        return chosen

    def put_back(self, chosen: Sequence[tuple[Slot, int]]) -> None:
        """What `next` gave and nobody writes after all is the first in the line again."""
        for slot, tries in reversed(chosen):
            self._waiting[slot] = tries
            self._waiting.move_to_end(slot, last=False)

    def answer(self, slot: Slot, error: Exception | None) -> None:
        for ack in self._acks.pop(slot, ()):
            if ack.done():
                continue
            if error is None:
                ack.set_result(None)
            else:
                ack.set_exception(error)

    def refuse(self, why: str) -> None:
        """Whoever waits hears so; the blocks keep their places."""
        for slot in [*self._acks]:
            self.answer(slot, not_durable(why))

    def give_up(self, why: str) -> None:
        self.refuse(why)
        self._waiting.clear()

    def _front(self, count: int | None) -> list[Slot]:
        """The next that wait, those that somebody waits for first; dropped ones are forgotten."""
        asked = (slot for slot in self._acks if slot in self._waiting)
        others = (slot for slot in self._waiting if slot not in self._acks)
        looked = [*islice(chain(asked, others), LOOKED_MAX)]
        self._forget(slot for slot in looked if _dropped(slot))
        return [slot for slot in looked if slot in self._waiting][:count]

    def _forget_dropped(self) -> None:
        self._forget([slot for slot in self._waiting if _dropped(slot)])

    def _forget(self, dropped: Iterable[Slot]) -> None:
        for slot in dropped:
            del self._waiting[slot]
            self.answer(slot, not_durable(DROPPED))

    def _viewed(self, slots: Sequence[Slot]) -> list[Waiting]:
        displaced: dict[tuple[Owner, str], float | None] = {}
        at_quota: dict[str, float | None] = {}  # by tenant, whose coldest goes, of any owner
        for slot in slots:
            whose = (slot.owner, slot.tenant)
            if whose in displaced:
                continue
            if not self._at_quota(slot):
                displaced[whose] = self._blocks.displaced(slot)
                continue
            if slot.tenant not in at_quota:
                at_quota[slot.tenant] = self._blocks.displaced(slot)
            displaced[whose] = at_quota[slot.tenant]
        worth, acks = self._blocks.index.worth, self._acks
        return [
            Waiting(slot, slot in acks, worth(slot)[0], displaced[slot.owner, slot.tenant])
            for slot in slots
        ]

    def _at_quota(self, slot: Slot) -> bool:
        """Whether the tenant has to lose something on SSD for a copy, though there is room."""
        size = self._blocks.slabs.slab_of(slot).slot_bytes
        return self._blocks.shares.excess(Tier.SSD, slot.tenant, size) > 0


def _dropped(slot: Slot) -> bool:
    """Whether there is nothing to be written any more: it is gone, or on SSD."""
    return slot.state is not State.SEALED or slot.twin is not None


def not_durable(why: str) -> Exception:
    return Unavailable(f"the block is in memory and not on SSD: {why}")
