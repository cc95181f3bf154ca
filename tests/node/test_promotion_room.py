"""Room for what is read from SSD: made at once for a call, and given to its first blocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kvstore.core.lifecycle import Tier
from kvstore.core.room import Room
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from tests.node.rig import SLAB, SMALL, TOKENS, prompt
from tests.node.tiered_rig import SECONDS, TieredRig
from tests.simulation.sim_disk import SimDisk

PLACES, BLOCKS = 64, 12  # in DRAM, and of them in a call


class Full(TieredRig):
    """All of DRAM is taken by others' copies, `free` of which nobody has open; a prompt is on SSD
    alone."""

    def __init__(self) -> None:
        super().__init__({"/data/a": SimDisk(1, 64 * SLAB, random.Random(1))})

    async def fill(self, free: int) -> list[bytes]:
        chain, reading = prompt(SMALL, BLOCKS * TOKENS, start=1_000), self.session()
        slots = self.put_some(1, BLOCKS)
        assert await self.durable(slots) == ""
        for slot in slots:
            self.blocks.leave_tier(slot)
        for number in range(2, 2 + PLACES // 4):
            assert await self.durable(self.put_some(number)) == ""
        for number in range(2, 2 + (PLACES - free) // 4):
            for name in prompt(SMALL, 4 * TOKENS, start=1_000 * number).hashes:
                self.pinned(reading, name)
        return self.store.keys("default", SMALL, chain.hashes)

    def where(self, keys: list[bytes]) -> list[Tier | None]:
        found = map(self.blocks.index.peek, keys)
        return [None if slot is None else slot.tier for slot in found]


def in_full(free: int, story: Callable[[Full, list[bytes]], Awaitable[None]]) -> None:
    rig = Full()

    async def work() -> None:
        keys = await rig.fill(free)
        assert not rig.blocks.slabs.room(SMALL.owner, SMALL.layout.slot_bytes)
        await story(rig, keys)
        rig.store.check()

    rig.run(work)


def brought(free: int, then: Callable[[Full, list[bytes]], None]) -> None:
    async def story(rig: Full, keys: list[bytes]) -> None:
        async with asyncio.timeout(SECONDS), rig.tiers.brought(keys):
            then(rig, keys)

    in_full(free, story)


def test_room_for_all_blocks_of_a_call_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, asked = Room.choose, list[int]()

    def counted(self: Room, slabs: Slabs, *given: object) -> object:
        if slabs.tier is Tier.DRAM:
            asked.append(int(given[3]))  # type: ignore[call-overload]
        return choose(self, slabs, *given)  # type: ignore[arg-type]

    def all_came(rig: Full, keys: list[bytes]) -> None:
        assert rig.where(keys) == [Tier.DRAM] * BLOCKS
        assert asked[-1:] == [BLOCKS] and asked.count(1) == 0

    monkeypatch.setattr(Room, "choose", counted)
    brought(free=16, then=all_came)


@pytest.mark.parametrize("free", [0, 4, 8])
def test_the_first_blocks_of_a_call_come_where_there_is_no_room_for_all(free: int) -> None:
    def some_came(rig: Full, keys: list[bytes]) -> None:
        assert rig.where(keys) == [Tier.DRAM] * free + [Tier.SSD] * (BLOCKS - free)
        assert rig.counters.totals()["promoted_blocks"] == free

    brought(free, some_came)


def test_what_there_is_no_room_to_prove_is_durable_once_there_is() -> None:
    async def story(rig: Full, keys: list[bytes]) -> None:
        slots = [slot for key in keys if (slot := rig.blocks.index.held(key)) is not None]
        for slot in slots:
            slot.unproven = True  # as after a restart
        for left in (8, 4):
            with pytest.raises(Overloaded, match="no room in memory to read and prove"):
                await rig.tiers.durable(slots)
            assert sum(slot.unproven for slot in slots) == left
        assert await rig.durable(slots) == ""
        assert not any(slot.unproven for slot in slots)

    in_full(4, story)
