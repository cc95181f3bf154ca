"""Finds blocks that rotted before anybody asks for them, in memory and on SSD, at a bounded rate.

A copy of a block is read piece by piece and held against its root and strip table. Nothing is held
meanwhile and no slot is taken, so nobody waits for it: a copy that changed hands is not judged. Of
a block with two copies only the damaged one goes, and a copy that SSD lost is written there again.
What an earlier run left and nobody has asked for sleeps on, unless it is damaged. What a disk will
not read is no damage yet: it is left to whoever asks for it.
"""

from __future__ import annotations

import enum
import logging
import mmap
from asyncio import Lock
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from kvstore.block import Miss
from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot, Tier
from kvstore.disk.head import vouched
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.errors import Overloaded
from kvstore.layout import SlotLayout
from kvstore.limits import MiB
from kvstore.memory.strip_proof import StripProof
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import LayoutOf
from kvstore.node.tiers import Tiers
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

# What is in HBM is verified by each who reads it, and on its way down to DRAM.
_TIERS = (Tier.DRAM, Tier.SSD)

PIECE_BYTES, PIECE_STRIPS = 1 * MiB, 256  # hashed in one go, in some 100 µs: other callers wait
ROUND_SECONDS_MIN = 600.0  # from the start of one round to the next: a small pool needs no more
_RETRY_MS = 5_000


@dataclass(slots=True)
class Progress:
    """How far a round has come."""

    blocks: int  # there were at its start
    blocks_done: int = 0  # verified, or gone meanwhile
    bytes_done: int = 0
    damaged: int = 0  # copies that were dropped
    unread: int = 0  # copies on SSD that the disk would not read

    @property
    def ended(self) -> bool:
        return self.blocks_done == self.blocks

    def __str__(self) -> str:
        return (
            f"{self.blocks_done} of {self.blocks} blocks, {self.bytes_done} bytes, "
            f"{self.damaged} copies damaged, {self.unread} could not be read"
        )


class Found(enum.Enum):
    """What there is to say of a copy that was read."""

    SOUND = enum.auto()
    DAMAGED = enum.auto()
    SUPERSEDED = enum.auto()  # a record says of it what was so before its place went to another
    UNJUDGED = enum.auto()


class Pace:
    """Holds one reader to a byte rate, or to none. What it was late with is not made up for."""

    def __init__(self, clock: Clock, rate: int) -> None:
        self._clock, self._rate, self._due = clock, rate, clock.now()

    async def spend(self, count: int) -> None:
        """Return when so many bytes may be read; others get a turn in any case."""
        now = self._clock.now()
        start = max(self._due, now)
        self._due = start + (count / self._rate if self._rate else 0.0)
        await self._clock.sleep(start - now)


class Scrubber:
    """Verifies the sealed blocks of one node, in rounds."""

    def __init__(
        self,
        blocks: Blocks,
        tiers: Tiers | None,
        layout_of: LayoutOf,
        clock: Clock,
        counters: Telemetry,
        rate: int,
    ) -> None:
        self._blocks, self._tiers = blocks, tiers
        self._layout_of, self._clock, self._counters = layout_of, clock, counters
        self._rate = rate  # bytes a second; 0: no rounds but those that are asked for
        self._reading = Lock()  # one thread at a time, whoever asked
        self._asked = False

    async def serve(self) -> None:
        """Round after round, until cancelled."""
        while self._rate:
            began = self._clock.now()
            try:
                async for _ in self._round(self._rate):
                    pass
            except Exception:
                log.exception("a scrub ended in a way that nobody foresaw; the next one comes")
            await self._clock.sleep(began + ROUND_SECONDS_MIN - self._clock.now())

    async def round(self, rate: int) -> AsyncGenerator[Progress, None]:
        """One round from the first block on, at a rate of its own; 0: as fast as one reader is."""
        if self._asked:
            raise Overloaded("a scrub that was asked for is under way: wait for it", _RETRY_MS)
        self._asked = True
        try:
            async with aclosing(self._round(rate)) as steps:
                async for progress in steps:
                    yield progress
        finally:
            self._asked = False

    async def _round(self, rate: int) -> AsyncGenerator[Progress, None]:
        index, pace = self._blocks.index, Pace(self._clock, rate)
        progress, began = Progress(len(index)), self._clock.now()
        keys = index.keys(lambda owner, tenant: True)
        yield replace(progress)
        for key in keys:
            for tier in _TIERS:
                copy = self._copy(key, tier)
                if copy is not None:
                    await self._look_at(copy, pace, progress)
            progress.blocks_done += 1
            yield replace(progress)
            await self._clock.sleep(0)  # many may have gone, and cost nothing
        level = logging.WARNING if progress.damaged or progress.unread else logging.INFO
        log.log(level, "scrubbed %s, in %.1f s", progress, self._clock.now() - began)

    def _copy(self, key: bytes, tier: Tier) -> Slot | None:
        """What a tier has of a block; of one that sleeps a likeness."""
        slot = self._blocks.index.peek(key)
        if slot is None or slot.tier is tier:
            return slot
        return slot.twin

    async def _look_at(self, copy: Slot, pace: Pace, progress: Progress) -> None:
        key, before = copy.key, progress.bytes_done
        try:
            found = await self._found(copy, pace, progress)
        except DiskError as failed:
            if not progress.unread:
                log.warning("a block could not be scrubbed, and there may be more: %s", failed)
            progress.unread += 1
            found = Found.UNJUDGED
        self._counters.add("scrubbed_bytes", progress.bytes_done - before)
        if found is Found.UNJUDGED:
            return
        self._counters.add("scrubbed_blocks")
        if found is Found.DAMAGED:
            log.warning("a copy of block %s in %s was damaged", key.hex()[:12], copy.tier.name)
            progress.damaged += 1
        if found is not Found.SOUND:
            self._blocks.index.held(key)  # it has to be awake to go
        now = self._copy(key, copy.tier)
        assert now is not None, "a copy that nobody holds was judged"
        if found is Found.SOUND:
            self._blocks.index.prove(now)
        elif found is Found.DAMAGED:
            self._blocks.damaged(now)
        else:
            self._blocks.lose(now, Miss.EVICTED)

    async def _found(self, copy: Slot, pace: Pace, progress: Progress) -> Found:
        """Whether a copy is what was sealed. `UNJUDGED`: it changed hands.

        There is no wait between the last look at the slot and the answer. A block that wakes
        meanwhile keeps its place and generation.
        """
        key, generation, layout = copy.key, copy.generation, self._layout_of(copy.owner)
        step = _piece_bytes(layout)
        own = memoryview(mmap.mmap(-1, max(step, layout.head_bytes)))  # as a disk wants it aligned
        proof: StripProof | None = None
        at = 0
        while at < layout.slot_bytes:
            count = min(step, layout.slot_bytes - at) if at else layout.head_bytes
            await pace.spend(count)
            piece = await self._piece(copy, at, own[:count])
            progress.bytes_done += count
            now = self._copy(key, copy.tier)
            if now is None or now.generation != generation:
                return Found.UNJUDGED
            if proof is None:
                if self._superseded(piece, copy):
                    return Found.SUPERSEDED
                if not self._vouched(piece, copy, layout):
                    return Found.DAMAGED
                proof = StripProof(piece, copy.tokens, layout)
            elif not proof.take(piece):
                return Found.DAMAGED
            at += count
        return Found.SOUND

    async def _piece(self, copy: Slot, at: int, own: memoryview) -> memoryview:
        if copy.tier is Tier.DRAM:
            start = copy.offset + at
            return self._blocks.view[start : start + len(own)]
        assert self._tiers is not None, "a slot on an SSD that is not there"
        async with self._reading:
            await self._tiers.peek(copy, at, own)
        return own

    def _superseded(self, head: memoryview, copy: Slot) -> bool:
        """Whether another block lay there when an earlier run of the node was killed."""
        if copy.tier is Tier.DRAM or self._tiers is None:
            return False
        return self._tiers.superseded(head, copy)

    def _vouched(self, head: memoryview, copy: Slot, layout: SlotLayout) -> bool:
        """Whether a head's identity and strip table are those that the copy's root stands for."""
        if copy.tier is Tier.DRAM:
            return vouched(head, copy.root, layout)
        assert self._tiers is not None, "a slot on an SSD that is not there"
        return self._tiers.belongs(head, copy, layout)


def _piece_bytes(layout: SlotLayout) -> int:
    wanted = min(PIECE_BYTES, PIECE_STRIPS * layout.strip_stride)
    return max(DISK_ALIGN, wanted // DISK_ALIGN * DISK_ALIGN)
