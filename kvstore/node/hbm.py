"""The HBM tier of one node: memory of one GPU that the host's engines on that GPU put blocks into,
and those blocks' way down to DRAM.

A block comes there from its writer, and goes once others have no room: to DRAM, where that takes
it, the least worth first. So does one that is to be read by whoever does not reach HBM.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice

from kvstore.block import Miss
from kvstore.clock import Clock
from kvstore.core.carried import Line
from kvstore.core.lifecycle import Owner, Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.layout import SlotLayout
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import LayoutOf
from kvstore.node.promotion import Promotion, Read
from kvstore.node.threads import Threads

log = logging.getLogger(__name__)

FREE_SHARE = 1 / 8  # of the tier, kept free for what comes next
BATCH_BLOCKS = 64  # that are on their way at once
FULL_SECONDS = 0.05  # until it is tried again, where neither tier has room

Whose = tuple[Owner, str]  # owner and tenant


class Hbm:
    """Serves one node's HBM."""

    def __init__(
        self,
        blocks: Blocks,
        read: Read,
        layout_of: LayoutOf,
        threads: Threads,
        clock: Clock,
    ) -> None:
        """`read` copies a block from there and verifies it: see `kvstore.node.from_hbm`."""
        assert blocks.hbm is not None, "blocks without HBM"
        self._blocks, self._slabs, self._clock = blocks, blocks.hbm, clock
        self._read, self._loop = read, asyncio.get_running_loop()
        line = Line(of_ssd=False, tell=lambda carried: None)  # of no use to anybody else
        source = (Tier.HBM, self._read_or_break, line)
        self._moves = Promotion(blocks, *source, layout_of, threads, clock)
        self._free_share = FREE_SHARE
        self._changed = asyncio.Event()
        self.broken = ""  # why nothing can be read there any more
        blocks.on_lent = self._changed.set

    def _read_or_break(self, source: Slot, target: Slot, layout: SlotLayout) -> Miss | None:
        """In a thread. What CUDA cannot do once it never does again: torch says RuntimeError."""
        try:
            return self._read(source, target, layout)
        except RuntimeError as error:
            self._loop.call_soon_threadsafe(self._break, str(error))
            return Miss.DAMAGED

    def _break(self, cause: str) -> None:
        """Nothing more is to come here. What is here goes as it is asked for."""
        if not self.broken:
            log.error("the HBM that this node lends is lost: %s", cause)
            self.broken = cause
            self._slabs.retire_all()

    @property
    def left(self) -> int:
        """Blocks that are there."""
        return len(self._blocks.lent)

    def brought(
        self, keys: Sequence[bytes], seconds: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Inside this, blocks of these keys that were in HBM are in DRAM, if they fit and were
        copied within `seconds`."""
        return self._moves.brought(keys, seconds)

    def empty(self) -> None:
        """From now on nothing is to stay there."""
        self._free_share = 1.0
        self._changed.set()

    async def serve(self) -> None:
        """Keep some of it free, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            stuck = set[Whose]()  # of whom nothing can go now
            while some := coldest(self._blocks, self._slabs, self._free_share, stuck):
                await self._make_room(some, stuck)
            if stuck:
                await self._clock.sleep(FULL_SECONDS)
                self._changed.set()

    async def _make_room(self, slots: Sequence[Slot], stuck: set[Whose]) -> None:
        async with self.brought([slot.key for slot in slots]):
            pass
        index = self._blocks.index
        left = Counter((one.owner, one.tenant) for one in slots if index.held(one.key) is one)
        for whose, count in left.items():
            # DRAM is full of what is held, or of what stands before blocks in HBM; or the tenant is
            # at its quota. Its own go then, from their ends: what stands before them can go from
            # DRAM once they have.
            gone = list(islice(index.coldest(*whose, lowest=Tier.HBM), count))
            self._blocks.drop_all(gone, Miss.EVICTED)
            self._blocks.evicted(len(gone))
            if not gone:
                stuck.add(whose)


def coldest(
    blocks: Blocks, slabs: Slabs, free_share: float, but: Collection[Whose] = ()
) -> list[Slot]:
    """What is to leave HBM next, so that a share of it becomes free: of much the first. None of
    those in `but` goes."""
    used = sum(blocks.shares.used(Tier.HBM).values())
    over = used - slabs.capacity_bytes * (1 - free_share)
    if over <= 0:
        return []
    lanes = [blocks.lent.coldest(*one, ()) for one in blocks.lent.places() if one not in but]
    worth = blocks.index.worth
    some = list[Slot]()
    for slot in heapq.merge(*lanes, key=lambda one: (*worth(one), one.number)):
        if over <= 0 or len(some) == BATCH_BLOCKS:
            break
        some.append(slot)
        over -= slabs.slab_of(slot).slot_bytes
    return some
