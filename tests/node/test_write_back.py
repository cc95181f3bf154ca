"""Whom an acknowledgement is for, what is written first, and what not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.placement import PRESSED
from kvstore.core.shares import Share
from kvstore.core.slabs import Slabs
from kvstore.disk.volumes import Volumes
from kvstore.errors import Overloaded, Unavailable
from kvstore.node import write_queue
from kvstore.node.blocks import Blocks
from kvstore.node.store import Store
from kvstore.node.threads import Threads
from kvstore.node.tiers import Tiers
from kvstore.node.write_queue import SWEEP_MIN, WriteQueue
from tests.core.two_tiers import TwoTiers
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, Known, Rig, prompt
from tests.simulation.sim_disk import SimDisk

SLOTS = SLAB // SMALL.layout.slot_bytes


def with_ssd(
    story: Callable[[Rig, Tiers], Awaitable[None]], dram: int = 1, ssd: int = 4, hbm: int = 0
) -> None:
    """A rig of so many slabs in each tier, that is not being served yet."""

    async def run() -> None:
        rig, threads = Rig(slabs=dram, hbm_slabs=hbm), Threads()
        slabs = Slabs(ssd * SLAB, SLAB, Tier.SSD)
        rig.blocks = Blocks(rig.arena, SLAB, rig.counters, slabs)
        rig.store = Store(rig.blocks, rig.handles, rig.clock, Known(), rig.counters)
        volumes = Volumes({"a": SimDisk(1, ssd * SLAB, random.Random(1))})
        layout = SMALL.layout
        tiers = Tiers(rig.blocks, volumes, lambda _: layout, threads, rig.clock, rig.counters)
        try:
            await story(rig, tiers)
        finally:
            threads.shutdown()

    asyncio.run(run())


def test_a_block_that_somebody_waits_for_is_not_evicted_before_it_is_written() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        slots = rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS))
        asked = asyncio.create_task(tiers.durable(slots))
        await asyncio.sleep(0)  # it waits now; nothing is being written yet
        with pytest.raises(Overloaded):
            rig.put(session, SMALL, prompt(SMALL, 4, 1_000))
        serving = asyncio.create_task(tiers.serve())
        await asyncio.wait_for(asked, 5)
        again = rig.put(session, SMALL, prompt(SMALL, 4, 1_000))
        assert again[0].offset in {slot.offset for slot in slots}, "now it has made room"
        serving.cancel()

    with_ssd(story)


def test_a_block_in_hbm_is_never_acknowledged_and_others_are_written_all_the_same() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        above = rig.put(session, SMALL, prompt(SMALL, 4), reach=Tier.HBM)
        below = rig.put(session, SMALL, prompt(SMALL, 4, 1_000))
        assert [one[0].tier for one in (above, below)] == [Tier.HBM, Tier.DRAM]
        serving = asyncio.create_task(tiers.serve())
        with pytest.raises(Unavailable, match="it is in HBM, and was not brought to DRAM"):
            await asyncio.wait_for(tiers.durable([*below, *above]), 5)
        await asyncio.wait_for(tiers.durable(below), 5)
        serving.cancel()

    with_ssd(story, hbm=1)


def test_a_block_that_is_removed_before_it_was_written_is_not_acknowledged() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        blocks = prompt(SMALL, 4)
        asked = asyncio.create_task(tiers.durable(rig.put(rig.session(), SMALL, blocks)))
        await asyncio.sleep(0)
        rig.store.remove(rig.store.keys("default", SMALL, blocks.hashes))
        serving = asyncio.create_task(tiers.serve())
        with pytest.raises(Unavailable, match="dropped before it was written"):
            await asyncio.wait_for(asked, 5)
        rig.store.check()
        serving.cancel()

    with_ssd(story)


@pytest.mark.parametrize("ssd", [1, 4], ids=["of a full disk", "at a quota"])
def test_a_block_worth_less_than_what_it_would_displace_stays_in_dram_until_it_is_used(
    ssd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        rig.blocks.shares.granted = {"default": Share(bytes_max=SLAB)} if ssd > 1 else {}
        session, worth = rig.session(), dict[bytes, float]()
        monkeypatch.setattr(rig.blocks.index, "worth", lambda s: (worth.get(s.key, 0.5), s.number))
        serving = asyncio.create_task(tiers.serve())
        await tiers.durable(rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS)))  # SSD is full
        new = prompt(SMALL, 4, 1_000)
        (slot,) = rig.put(session, SMALL, new)
        worth[slot.key] = 0.1
        async with asyncio.timeout(5):
            while not rig.counters.totals()["passed_blocks"]:
                await asyncio.sleep(0.001)
        assert slot.lowest is not Tier.SSD and rig.hits(SMALL, new) == 1
        worth[slot.key] = 0.9
        rig.match(SMALL, new.hashes)  # a use of it
        for _ in range(2_000):
            if slot.lowest is Tier.SSD:
                break
            await asyncio.sleep(0.001)
        assert slot.lowest is Tier.SSD, "what is used again is looked at again"
        serving.cancel()

    with_ssd(story, dram=2, ssd=ssd)


def test_what_is_asked_to_be_durable_is_written_however_little_it_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        serving = asyncio.create_task(tiers.serve())
        await tiers.durable(rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS)))
        slots = rig.put(session, SMALL, prompt(SMALL, 4, 1_000))
        least = {slot.key: 0.0 for slot in slots}
        monkeypatch.setattr(rig.blocks.index, "worth", lambda s: (least.get(s.key, 1.0), s.number))
        await asyncio.wait_for(tiers.durable(slots), 5)
        assert all(slot.lowest is Tier.SSD for slot in slots)
        serving.cancel()

    with_ssd(story, dram=2, ssd=1)


def test_what_is_too_much_for_one_batch_keeps_its_place_in_the_line() -> None:
    rig = Rig(slabs=4)
    queue = WriteQueue(rig.blocks, rig.counters)
    rig.blocks.ssd = Slabs(4 * SLAB, SLAB, Tier.SSD)
    slots = rig.put(rig.session(), SMALL, prompt(SMALL, 4 * 10))
    size = SMALL.layout.slot_bytes
    assert [slot for slot, _ in queue.next(99, 2 * size + 1)] == slots[:3]
    (late,) = rig.put(rig.session(), SMALL, prompt(SMALL, 4, 1_000))
    assert [slot for slot, _ in queue.next(4, 99 * size)] == slots[3:7]
    assert [slot for slot, _ in queue.next(99, 99 * size)] == [*slots[7:], late]


def test_a_batch_is_chosen_from_the_front_of_the_line_however_long_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig, looked = Rig(slabs=8), list[Slot]()
        queue = WriteQueue(rig.blocks, rig.counters)
        rig.blocks.ssd = Slabs(8 * SLAB, SLAB, Tier.SSD)
        slots = rig.put(rig.session(), SMALL, prompt(SMALL, 4 * 8 * SLOTS))
        place = {slot: at for at, slot in enumerate(slots)}

        def worth(slot: Slot) -> tuple[float, int]:
            if slot in place:
                looked.append(slot)
            return place.get(slot, -1), 0  # whoever came last is worth most

        def chosen(count: int) -> list[int]:
            looked.clear()
            return [place[slot] for slot, _ in queue.next(count, 99 * SLAB)]

        monkeypatch.setattr(rig.blocks.index, "worth", worth)
        monkeypatch.setattr(write_queue, "LOOKED_MAX", 8)
        last = len(slots) - 1
        assert rig.blocks.alone > PRESSED and last > 20
        assert chosen(2) == [7, 6] and len(looked) == 8
        assert chosen(3) == [9, 8, 5] and len(looked) == 8, "others have kept their places"
        asked = [asyncio.create_task(queue.written([slot], ())) for slot in slots[-6:]]
        await asyncio.sleep(0)
        assert chosen(4) == [last - at for at in range(4)] and len(looked) == 8
        assert chosen(4) == [last - 4, last - 5, 10, 4] and len(looked) == 8
        queue.give_up("the test is over")
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(main())


def test_at_a_quota_what_the_models_of_a_tenant_displace_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = TwoTiers(dram=8, ssd=8)
    queue = WriteQueue(rig.blocks, rig.counters)
    for place in (SMALL, LARGE):
        rig.put_on_ssd(place, prompt(place, TOKENS))
        rig.put(rig.writing, place, prompt(place, TOKENS, 1_000))
    asked, displaced = list[Slot](), rig.blocks.displaced

    def asks(slot: Slot) -> float | None:
        asked.append(slot)
        return displaced(slot)

    monkeypatch.setattr(rig.blocks, "displaced", asks)
    assert len(queue.next(99, SLAB)) == 2 and len(asked) == 2, "each has its room"
    for place in (SMALL, LARGE):
        rig.put(rig.writing, place, prompt(place, TOKENS, 2_000))
    most = rig.blocks.shares.used(Tier.SSD)["default"]
    rig.blocks.shares.granted = {"default": Share(bytes_max=most)}
    assert len(queue.next(99, SLAB)) == 2 and len(asked) == 3, "it is one quota"


def test_dropped_blocks_at_the_front_of_a_line_are_neither_written_nor_all_looked_at_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, seen, really = [0], list[int](), WriteQueue.next

    def counted(queue: WriteQueue, count: int, size: int) -> list[tuple[Slot, int]]:
        seen.append(turns[0])
        return really(queue, count, size)

    async def turn() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def story(rig: Rig, tiers: Tiers) -> None:
        session, some = rig.session(), prompt(SMALL, 4 * (SLOTS - 1), 1_000)
        rig.put(session, SMALL, some)
        rig.store.remove(rig.store.keys("default", SMALL, some.hashes))
        (kept,) = rig.put(session, SMALL, prompt(SMALL, 4))
        monkeypatch.setattr(write_queue, "LOOKED_MAX", 1)
        monkeypatch.setattr(WriteQueue, "next", counted)
        tasks = [asyncio.create_task(one) for one in (turn(), tiers.serve())]
        while kept.lowest is not Tier.SSD:
            await asyncio.sleep(0.001)
        assert tiers.unwritten == 0 and len(seen) >= SLOTS
        assert len({*seen}) == len(seen), "others had their turns"
        assert rig.counters.totals()["stored_blocks"] == 1
        for task in tasks:
            task.cancel()

    with_ssd(story)


def test_while_a_disk_takes_nothing_what_is_dropped_does_not_pile_up_in_the_line() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        (kept,) = rig.put(session, SMALL, prompt(SMALL, 4))
        asked = asyncio.create_task(tiers.durable([kept]))
        some = prompt(SMALL, 4 * (SLOTS - 1), 1_000)
        for _ in range(SWEEP_MIN // len(some) + 1):  # nothing is being written
            rig.put(session, SMALL, some)
            await asyncio.sleep(0)
            rig.store.remove(rig.store.keys("default", SMALL, some.hashes))
        assert tiers.unwritten < SWEEP_MIN
        serving = asyncio.create_task(tiers.serve())
        await asyncio.wait_for(asked, 5)
        serving.cancel()

    with_ssd(story)


@pytest.mark.parametrize("step", ["write", "sync", "commit"])
def test_a_bug_in_a_batch_holds_no_slot_of_it(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*given: object) -> None:
        raise ValueError("a bug")

    async def story(rig: Rig, tiers: Tiers) -> None:
        assert rig.blocks.ssd is not None
        monkeypatch.setattr(Volumes, step, mistaken)
        slots = rig.put(rig.session(), SMALL, prompt(SMALL, 4 * SLOTS))
        serving = asyncio.create_task(tiers.serve())
        with pytest.raises(Unavailable, match="the node met a bug"):
            await asyncio.wait_for(tiers.durable(slots), 5)
        assert not any(slot.held for slot in slots), "they can be evicted"
        assert rig.blocks.ssd.empty_slabs == 4, "a copy that nobody writes has a place"
        assert (tiers.unwritten, *tiers.being_written()) == (0,), "a node that stops would wait"
        rig.store.check()
        serving.cancel()

    with_ssd(story)


def test_what_is_durable_is_not_refused_because_another_block_is_proven_in_its_place() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        serving = asyncio.create_task(tiers.serve())
        (doubted,) = rig.put(session, SMALL, prompt(SMALL, 4))
        await asyncio.wait_for(tiers.durable([doubted]), 5)
        there = doubted.twin
        assert there is not None
        rig.blocks.leave_tier(doubted)
        there.unproven = True  # as after a restart
        slots = rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS, 1_000))
        await asyncio.wait_for(tiers.durable(slots), 5)
        await asyncio.wait_for(tiers.durable([*slots, there]), 5)
        assert not there.unproven
        assert not all(slot.twin for slot in slots), "one has made room for what was read"
        serving.cancel()

    with_ssd(story)


def test_what_is_to_be_durable_is_not_evicted_for_another_block_that_is_proven() -> None:
    async def story(rig: Rig, tiers: Tiers) -> None:
        session = rig.session()
        serving = asyncio.create_task(tiers.serve())
        (doubted,) = rig.put(session, SMALL, prompt(SMALL, 4))
        await asyncio.wait_for(tiers.durable([doubted]), 5)
        there = doubted.twin
        assert there is not None
        rig.blocks.leave_tier(doubted)
        there.unproven = True  # as after a restart
        slots = rig.put(session, SMALL, prompt(SMALL, 4 * SLOTS, 1_000))
        await asyncio.wait_for(tiers.durable([there, *slots]), 5)
        assert not there.unproven
        serving.cancel()

    with_ssd(story)
