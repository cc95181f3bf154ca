"""Room on a full SSD of which an earlier run left blocks that nobody has asked for since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvstore.core.lifecycle import Tier
from kvstore.core.shares import Share
from kvstore.node.namespaces import Place
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, prompt, triples
from tests.node.ssd_rig import FILE_SLABS, SsdRig

PLACES = 2 * FILE_SLABS * SLAB // SMALL.layout.slot_bytes


def test_what_wakes_while_a_slab_is_looked_for_disturbs_nobody(tmp_path: Path) -> None:
    """All that is there stands behind a hole. Two of a slab's blocks are awake, and one of them is
    held, so another slab is to be found; and looking at this one wakes the rest of it."""
    first = prompt(SMALL, TOKENS)
    others = [prompt(SMALL, TOKENS, start=100 * number).hashes[0] for number in range(1, PLACES)]
    chain = triples(first) + [(one, first.hashes[0], TOKENS) for one in others]

    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            windows = rig.store.reserve(rig.writing, SMALL, chain, SMALL.layout.whole)
            given = [one for one in windows if one is not None]
            for one in given:
                rig.write(one.slot, SMALL)
            rig.store.seal(rig.writing, [one.handle for one in given])
            await rig.tiers.durable([one.slot for one in given])
            places = {one.slot.key: one.slot.twin.offset for one in given if one.slot.twin}
            (hole,) = rig.store.keys("default", SMALL, first.hashes)
            assert rig.store.remove([hole]) == {hole}
            await rig.tiers.flushed([hole])
            del places[hole]
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            keys = sorted(places, key=places.__getitem__)
            held, other = map(rig.blocks.index.held, keys[-4:-2])
            assert held is not None and other is not None and not rig.ssd.slab_of(held).awake
            assert rig.ssd.slab_of(held) is rig.ssd.slab_of(other)
            held.moves += 1
            assert await rig.durable(rig.put(rig.writing, LARGE, prompt(LARGE, TOKENS))) == ""
            rig.blocks.let_go(held)
            assert rig.ssd.slab_of(held).awake and rig.blocks.index.held(keys[-4]) is held
            assert keys[0] not in rig.blocks.index, "its slab has changed hands"

    asyncio.run(story())


@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["its own", "others'"])
def test_what_sleeps_in_a_retired_file_keeps_nobody_from_the_rest(
    tmp_path: Path, place: Place
) -> None:
    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            for number in range(PLACES):
                await rig.put_durable(rig.writing, prompt(SMALL, TOKENS, start=100 * number))
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            rig.ssd.retire(0, FILE_SLABS * SLAB)
            slots = rig.put(rig.writing, place, prompt(place, TOKENS, start=100_000))
            assert await rig.durable(slots) == ""

    asyncio.run(story())


def test_what_sleeps_in_a_retired_file_keeps_nothing_before_it_in_dram(tmp_path: Path) -> None:
    one = prompt(SMALL, 3 * TOKENS)

    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            await rig.put_durable(rig.writing, one)
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            rig.ssd.retire_all()
            keys = rig.store.keys("default", SMALL, one.hashes)
            lost = rig.blocks.index.held(keys[0])
            assert lost is not None
            rig.blocks.damaged(lost)
            rig.put(rig.writing, SMALL, one, 0, 1)
            held = [slot for number in range(1, 16) for slot in rig.put_some(number)]
            held += rig.put_some(16, 3)
            for slot in held:
                slot.moves += 1  # all of DRAM but the one
            rig.put_some(17, 1)
            assert keys[0] not in rig.blocks.index and len(rig.blocks.index.sleepers) == 2
            for slot in held:
                rig.blocks.let_go(slot)

    asyncio.run(story())


def test_what_an_earlier_runs_model_left_on_ssd_makes_room_for_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            for number in range(PLACES):
                await rig.put_durable(rig.writing, prompt(SMALL, TOKENS, start=100 * number))
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            new = [prompt(LARGE, TOKENS, start=100 * number) for number in range(2 * FILE_SLABS)]
            for one in new:
                assert await rig.durable(rig.put(rig.writing, LARGE, one)) == ""
            left = {slab.owner for slab in rig.ssd.occupied()}
            assert SMALL.owner in left and LARGE.owner in left
            keys = [rig.store.keys("default", LARGE, one.hashes)[0] for one in new]
            found = [rig.blocks.index.held(key) for key in keys]
            assert all(one is not None and (one.twin or one).tier is Tier.SSD for one in found)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("place", "quota"), [(LARGE, PLACES), (SMALL, PLACES // 2)], ids=["larger", "a lower quota"]
)
def test_at_a_quota_as_much_wakes_as_has_to_go(tmp_path: Path, place: Place, quota: int) -> None:
    """One block takes the places of several that an earlier run left: it is larger, or the quota
    was lowered."""

    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            for number in range(PLACES):
                await rig.put_durable(rig.writing, prompt(SMALL, TOKENS, start=100 * number))
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            most = quota * SMALL.layout.slot_bytes
            rig.blocks.shares.granted = {"default": Share(bytes_max=most)}
            for number in range(3):
                one = prompt(place, TOKENS, start=100_000 + 100 * number)
                assert await rig.durable(rig.put(rig.writing, place, one)) == ""
            assert rig.blocks.shares.used(Tier.SSD)["default"] <= most

    asyncio.run(story())
