"""The SSD tier of one node: what is written to it, read from it, and found on it at the start.

Nothing is acknowledged as durable before both its bytes and its record are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from kvstore.clock import Clock
from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.tombstones import Tombstones
from kvstore.disk.volumes import Volumes
from kvstore.layout import SlotLayout
from kvstore.node.blocks import Blocks
from kvstore.node.frozen import Frozen
from kvstore.node.head_scan import HeadScan
from kvstore.node.namespaces import LayoutOf
from kvstore.node.promotion import Promotion
from kvstore.node.recovery import recover
from kvstore.node.retirement import PathState
from kvstore.node.threads import Threads
from kvstore.node.write_back import WriteBack
from kvstore.node.write_queue import not_durable
from kvstore.telemetry import Telemetry


class Tiers:
    """The SSD tier and the moves to and from it."""

    def __init__(
        self,
        blocks: Blocks,
        volumes: Volumes,
        layout_of: LayoutOf,
        threads: Threads,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._blocks, self._volumes = blocks, volumes
        self._threads, self._clock = threads, clock
        self._frozen = frozen = Frozen(blocks.view, volumes)
        source = (Tier.SSD, frozen.read, blocks.carried.ssd)
        self._up = Promotion(blocks, *source, layout_of, threads, clock)
        self._down = WriteBack(blocks, volumes, frozen, layout_of, threads, clock, counters)

    async def serve(self) -> None:
        """Write what waits, until cancelled."""
        await self._down.serve()

    @property
    def unwritten(self) -> int:
        """Blocks that wait to be written to SSD or are on their way there."""
        return self._down.unwritten

    async def durable(self, slots: Sequence[Slot]) -> None:
        """Return once every one of these sealed blocks survives a power loss, or raise."""
        doubted = [slot for slot in slots if slot.unproven]
        for slot in doubted:
            slot.moves += 1  # what is written makes no room by them
        try:
            # What is to be proven takes places in DRAM: of those who are on SSD too by then.
            await self._down.durable(slots)
            if not await self._up.prove(doubted):
                raise not_durable("what is recorded of it could not be read")
            if any(slot.state is not State.SEALED for slot in doubted):
                raise not_durable("it was dropped meanwhile")
        finally:
            for slot in doubted:
                self._blocks.let_go(slot)

    async def flushed(self, keys: Iterable[bytes]) -> None:
        """Return once no restart brings back what was dropped of these keys before now, or raise.
        What else was dropped is flushed too, where its path takes that."""
        await self._down.flushed(keys)

    def being_written(self) -> Iterable[Slot]:
        """Slots on SSD that get a block right now."""
        return self._down.being_written()

    async def erase(self, slots: Sequence[Slot]) -> None:
        """Return once nothing on the disk speaks of what was dropped before now, and the heads in
        these slots, which the caller holds, are overwritten. Raises `DiskError`."""
        await self._down.erase(slots)

    def brought(
        self, keys: Sequence[bytes], seconds: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Inside this, blocks of these keys that were on SSD alone are in DRAM, if they fit and
        were read within `seconds`."""
        return self._up.brought(keys, seconds)

    async def peek(self, slot: Slot, at: int, into: memoryview) -> None:
        """What lies in a slot on SSD from `at` on, unverified. Raises `DiskError`."""
        await self._threads.read(self._frozen.peek, slot, at, into)

    def belongs(self, head: memoryview, slot: Slot, layout: SlotLayout) -> bool:
        """Whether a head that was read there is that of the block in this slot on SSD."""
        return self._frozen.belongs(head, slot, layout)

    def superseded(self, head: memoryview, slot: Slot) -> bool:
        """Whether it is that of a later block than the one that a record has in this slot."""
        return self._frozen.superseded(head, slot)

    def paths(self) -> list[PathState]:
        """The paths as they are now, in the order they were named."""
        return self._down.retirement.paths()

    def recover(
        self,
        tenants: Collection[str],
        layouts: Mapping[Owner, SlotLayout],
        tombstones: Tombstones,
    ) -> int:
        """Take up what an earlier run recorded and did not purge; how many blocks that was."""
        assert self._blocks.ssd is not None
        scan = HeadScan(self._volumes, self._blocks.ssd.slab_bytes, tenants, layouts)
        scan.rebuild(self._threads.each, self._clock)
        return recover(self._blocks, self._volumes, tenants, layouts.get, tombstones)
