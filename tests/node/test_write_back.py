"""Whom an acknowledgement is for: the block that was asked about, not its place."""

from __future__ import annotations

import asyncio
import random

import pytest

from kvstore.core.lifecycle import Tier
from kvstore.core.slabs import Slabs
from kvstore.disk.volumes import Volumes
from kvstore.errors import Unavailable
from kvstore.node.threads import Threads
from kvstore.node.tiers import Tiers
from tests.node.rig import SLAB, SMALL, Rig, prompt
from tests.simulation.sim_disk import SimDisk

SLOTS = SLAB // SMALL.layout.slot_bytes


def test_a_block_evicted_before_it_was_written_is_not_acknowledged_with_the_next_in_its_slot() -> (
    None
):
    async def story() -> None:
        rig, threads = Rig(slabs=1), Threads()
        rig.blocks.ssd = Slabs(4 * SLAB, SLAB, Tier.SSD)
        volumes = Volumes({"a": SimDisk(1, 4 * SLAB, random.Random(1))})
        layout = SMALL.layout
        tiers = Tiers(rig.blocks, volumes, lambda _: layout, threads, rig.clock, rig.counters)
        session = rig.session()
        slots = rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS))
        asked = asyncio.create_task(tiers.durable(slots))
        await asyncio.sleep(0)  # it waits now; nothing is being written yet
        again = rig.put(session, SMALL, prompt(SMALL, 4, 1_000))
        offsets = {slot.offset for slot in slots}
        assert again[0].offset in offsets, "the place of one that was evicted for it"
        serving = asyncio.create_task(tiers.serve())
        await tiers.durable(again)
        with pytest.raises(Unavailable, match="dropped before it was written"):
            await asyncio.wait_for(asked, 5)
        serving.cancel()
        threads.shutdown()

    asyncio.run(story())
