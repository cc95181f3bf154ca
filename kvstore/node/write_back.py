"""Sealed blocks on their way from DRAM to SSD, and the acknowledgement that they are there.

Blocks that wait are written in batches: bytes side by side, then one sync of each file, then one
commit of the index, then every acknowledgement. A disk that fails a sync has forgotten what it was
given, so those blocks are not on it, and nothing more is written to it. One that is full is asked
again later. Reading goes on in either case.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.disk.protocol import Disk, DiskError, DiskFull
from kvstore.errors import Overloaded, Unavailable
from kvstore.limits import MiB
from kvstore.node.blocks import Blocks
from kvstore.node.frozen import Frozen
from kvstore.node.namespaces import LayoutOf
from kvstore.node.recovery import record_of
from kvstore.node.threads import Threads
from kvstore.telemetry import Counters

log = logging.getLogger(__name__)

BATCH_BYTES, BATCH_BLOCKS = 64 * MiB, 256
FULL_SECONDS = 1.0  # before a disk that was full is asked again


class WriteBack:
    """The writing half of one SSD tier."""

    def __init__(
        self,
        blocks: Blocks,
        disk: Disk,
        frozen: Frozen,
        layout_of: LayoutOf,
        threads: Threads,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self._blocks, self._disk, self._frozen = blocks, disk, frozen
        self._layout_of, self._threads = layout_of, threads
        self._clock, self._counters = clock, counters
        self._waiting: OrderedDict[Slot, int] = OrderedDict()  # to be written -> generation
        self._writing: set[Slot] = set()
        self._acks: dict[Slot, list[asyncio.Future[None]]] = {}
        self._changed, self._committing = asyncio.Event(), asyncio.Lock()
        self.broken = ""  # why nothing is written any more
        blocks.on_sealed = self._sealed

    async def serve(self) -> None:
        """Write what waits, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting and not self.broken:
                try:
                    room = await self._batch()
                except Exception:
                    log.exception("writing to SSD failed in a way that nobody foresaw")
                    self.broken = "the node met a bug; its log says which"
                    self._give_up()
                    break
                if not room:
                    await self._clock.sleep(FULL_SECONDS)

    async def durable(self, slots: Sequence[Slot]) -> None:
        """Return once every one of these sealed blocks survives a power loss, or raise."""
        acks = []
        for slot in slots:
            if slot.tier is Tier.SSD or slot.twin is not None:
                continue
            if self.broken or not (slot in self._waiting or slot in self._writing):
                raise not_durable(self.broken or "it was evicted before it was written")
            ack = asyncio.get_running_loop().create_future()
            self._acks.setdefault(slot, []).append(ack)
            acks.append(ack)
        for one in await asyncio.gather(*acks, return_exceptions=True):
            if isinstance(one, BaseException):
                raise one

    async def flushed(self) -> None:
        """Return once the disk's index says nothing of blocks that were dropped before now."""
        try:
            await self._commit({})
        except DiskError as failed:
            raise Unavailable(f"dropped, but a restart may bring it back: {failed}") from None

    def _sealed(self, slot: Slot) -> None:
        self._waiting[slot] = slot.generation
        self._changed.set()

    async def _batch(self) -> bool:
        """Write some of what waits; False when the disk has no room for it."""
        blocks, pairs = self._blocks, self._begun()
        self._writing = {slot for slot, _ in pairs}
        trouble: Exception | None = None
        good: list[tuple[Slot, Slot]] = []
        try:
            good = await self._written(pairs)
        except DiskError as failed:
            trouble = failed
            if not isinstance(failed, DiskFull):
                self.broken = str(failed)
                self._counters.add("ssd_failures")
            log.error("the SSD tier takes no blocks: %s", failed)
        stored = {slot for slot, _ in good}
        for slot, target in pairs:
            generation, layout = slot.generation, self._layout_of(slot.owner)
            whole = blocks.end_write(slot, target, stored=slot in stored)
            self._counters.add("stored_blocks" if whole else "unstored_blocks")
            if isinstance(trouble, DiskFull) and slot.generation == generation:
                self._waiting[slot] = generation  # until there is room again
            elif not whole and trouble is None and slot.state is State.SEALED:
                blocks.examine(slot, layout)
            self._answer(slot, None if whole else not_durable(str(trouble or "damaged")))
        self._writing = set()
        if self.broken:
            self._give_up()
        return trouble is None

    async def _written(self, pairs: Sequence[tuple[Slot, Slot]]) -> list[tuple[Slot, Slot]]:
        """Bytes, syncs, records, in this order; the pairs of which all are durable."""
        blocks = self._blocks
        calls = [
            self._threads.write(self._frozen.write, *pair, self._layout_of(pair[0].owner))
            for pair in pairs
        ]
        wrote = await asyncio.gather(*calls, return_exceptions=True)  # none may outlive its slots
        for one in wrote:
            if isinstance(one, BaseException):
                raise one
        good = [
            pair
            for pair, one in zip(pairs, wrote, strict=True)
            if one and blocks.index.held(pair[0].key) is pair[0]
        ]
        for file in sorted({target.offset // self._disk.file_bytes for _, target in good}):
            await self._threads.write(self._disk.sync, file)
        await self._commit({slot.key: record_of(slot, target) for slot, target in good})
        return good

    async def _commit(self, puts: dict[bytes, bytes]) -> None:
        """Record these blocks, and that those dropped before now are gone. One at a time: of two
        the later one must not undo the earlier."""
        async with self._committing:
            gone, self._blocks.unsaid = self._blocks.unsaid, set()
            if not puts and not gone:
                return
            try:
                await self._threads.write(self._disk.commit, puts, gone - puts.keys())
            except BaseException:
                self._blocks.unsaid |= gone
                raise

    def _begun(self) -> list[tuple[Slot, Slot]]:
        """Slots on SSD for the next blocks that wait and are still there."""
        pairs: list[tuple[Slot, Slot]] = []
        size = 0
        while self._waiting and len(pairs) < BATCH_BLOCKS and size < BATCH_BYTES:
            slot, generation = self._waiting.popitem(last=False)
            fresh = slot.generation == generation and slot.state is State.SEALED
            if not fresh or slot.twin is not None:
                self._answer(slot, not_durable("it was dropped before it was written"))
                continue
            layout = self._layout_of(slot.owner)
            try:
                pairs.append((slot, self._blocks.begin_write(slot, layout)))
            except Overloaded as full:
                self._counters.add("unstored_blocks")
                self._answer(slot, full)
                continue
            size += layout.slot_bytes
        return pairs

    def _answer(self, slot: Slot, error: Exception | None) -> None:
        for ack in self._acks.pop(slot, ()):
            if ack.done():
                continue
            if error is None:
                ack.set_result(None)
            else:
                ack.set_exception(error)

    def _give_up(self) -> None:
        for slot in [*self._waiting, *self._acks]:
            self._answer(slot, not_durable(self.broken))
        self._waiting.clear()


def not_durable(why: str) -> Exception:
    return Unavailable(f"the block is in DRAM and not on SSD: {why}")
