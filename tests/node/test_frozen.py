"""What lies on a disk is the block looked for, a later one, or damaged: never taken for another."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvstore.block import Miss
from kvstore.node.scrubber import Scrubber
from tests.node.rig import SMALL, TOKENS, prompt
from tests.node.ssd_rig import SsdRig, index_of, put_back
from tests.node.tiered_rig import PLACES

BLOCKS, LATER = prompt(SMALL, 3 * TOKENS), prompt(SMALL, 3 * TOKENS, start=1_000)


async def left_by_a_node_killed_before_it_committed(directory: Path) -> None:
    """Three blocks' records, and other blocks in their places: the one's removal and the other's
    arrival were to be recorded together."""
    async with SsdRig.started(directory) as rig:
        first = rig.leave_dram(await rig.put_durable(rig.session(), BLOCKS))
        keys, places = [slot.key for slot in first], {slot.offset for slot in first}
    records = index_of(directory)
    async with SsdRig.started(directory, epoch=2) as rig:
        rig.store.remove(keys)
        later = rig.leave_dram(await rig.put_durable(rig.session(), LATER))
        assert {slot.offset for slot in later} == places, "no place was taken over"
    put_back(directory, records)


def test_a_block_whose_place_another_had_when_the_node_was_killed_was_evicted(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        await left_by_a_node_killed_before_it_committed(tmp_path)
        async with SsdRig.started(tmp_path, epoch=3) as rig:
            keys = rig.store.keys("default", SMALL, BLOCKS.hashes)
            async with rig.tiers.brought(keys):
                assert rig.hits(SMALL, BLOCKS) == 0
            totals = rig.counters.totals()
            assert (totals["evicted_blocks"], totals["damaged_blocks"]) == (3, 0)

    asyncio.run(run())


def test_a_scrub_takes_it_for_no_damage_either(tmp_path: Path) -> None:
    async def run() -> None:
        await left_by_a_node_killed_before_it_committed(tmp_path)
        async with SsdRig.started(tmp_path, epoch=3) as rig:
            layout_of = {owner: place.layout for owner, place in PLACES.items()}.__getitem__
            scrubber = Scrubber(rig.blocks, rig.tiers, layout_of, rig.clock, rig.counters, 0)
            progress = [one async for one in scrubber.round(0)][-1]
            assert (progress.blocks_done, progress.damaged) == (3, 0)
            outcomes = rig.store.exists("default", SMALL, BLOCKS.hashes)
            assert outcomes == [Miss.EVICTED, Miss.EVICTED, Miss.EVICTED]

    asyncio.run(run())
