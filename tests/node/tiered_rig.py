"""A store with an SSD tier: simulated disks, and real threads that call them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.disk.protocol import Disk
from kvstore.disk.volumes import Volumes
from kvstore.errors import Unavailable
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place
from kvstore.node.store import Store
from kvstore.node.threads import Threads
from kvstore.node.tiers import Tiers
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, Known, Rig, prompt

SECONDS = 10.0
PLACES = {SMALL.owner: SMALL, LARGE.owner: LARGE}


class TieredRig(Rig):
    """A store with an SSD tier of simulated paths, and threads that call them."""

    def __init__(self, disks: Mapping[str, Disk], epoch: int = 1) -> None:
        super().__init__(slabs=16)
        self.volumes = Volumes(disks)
        self.ssd = Slabs(self.volumes.capacity_bytes, SLAB, Tier.SSD, epoch << 40)
        self.blocks = Blocks(self.arena, SLAB, self.counters, self.ssd)
        self.store = Store(self.blocks, self.handles, self.clock, Known(), self.counters)
        self.threads = Threads()
        layouts = {owner: place.layout for owner, place in PLACES.items()}
        self.tiers = Tiers(
            *(self.blocks, self.volumes, layouts.__getitem__),
            *(self.threads, self.clock, self.counters),
        )
        self.writing = self.session()

    def put_some(self, number: int, blocks: int = 4, place: Place = SMALL) -> list[Slot]:
        chain = prompt(place, blocks * TOKENS, start=1_000 * number)
        return self.put(self.writing, place, chain)

    async def durable(self, slots: list[Slot]) -> str:
        """Why these did not become durable; empty where they did."""
        try:
            await asyncio.wait_for(self.tiers.durable(slots), SECONDS)
        except Unavailable as refused:
            return str(refused)
        self.store.check()
        return ""

    def files(self, slots: list[Slot]) -> set[int]:
        return {self.volumes.file_of(slot.twin.offset) for slot in slots if slot.twin is not None}

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def served() -> None:
            serving = asyncio.create_task(self.tiers.serve())
            try:
                await work()
                assert not serving.done()
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                self.threads.shutdown()

        asyncio.run(served())
        self.store.check()
