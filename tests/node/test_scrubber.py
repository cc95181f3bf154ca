"""The scrubber finds each damaged copy, drops that one and no other, and never goes too fast."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.block import Miss, stored_keys
from kvstore.cli.main import main
from kvstore.core.lifecycle import Slot, State
from kvstore.disk.protocol import DiskError
from kvstore.disk.record import Record
from kvstore.errors import Overloaded
from kvstore.limits import KiB, MiB
from kvstore.node import scrubber as module
from kvstore.node.scrubber import Pace, Progress, Scrubber
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import LARGE, SECRETS, SMALL, Rig, prompt
from tests.node.ssd_rig import SsdRig, index_of, put_back
from tests.node.test_ssd import flip_inside, put_durable
from tests.node.tiered_rig import PLACES
from tests.nodes import LARGE as LARGE_SPEC
from tests.nodes import NodeProcess, eventually, payload, running
from tests.nodes import prompt as node_prompt

LAYOUTS = {owner: place.layout for owner, place in PLACES.items()}
BLOCKS = prompt(SMALL, 10)  # three blocks, the last of two tokens


def scrubber(rig: Rig, rate: int = 0) -> Scrubber:
    tiers = getattr(rig, "tiers", None)
    return Scrubber(rig.blocks, tiers, LAYOUTS.__getitem__, rig.clock, rig.counters, rate)


async def whole_round(of: Scrubber) -> Progress:
    progress = [one async for one in of.round(0)]
    assert progress[-1].ended and progress[0].blocks_done == 0
    return progress[-1]


def with_ssd(directory: Path, body: Callable[[SsdRig], Awaitable[None]]) -> None:
    async def run() -> None:
        async with SsdRig.started(directory) as rig:
            await body(rig)

    asyncio.run(run())


def test_sound_blocks_stay_and_are_counted() -> None:
    rig = Rig()
    rig.put(rig.session(), SMALL, BLOCKS)
    rig.put(rig.session(), LARGE, prompt(LARGE, 8))
    found = asyncio.run(whole_round(scrubber(rig)))
    read = 3 * SMALL.layout.slot_bytes + 2 * LARGE.layout.slot_bytes
    assert (found.blocks, found.damaged, found.bytes_done) == (5, 0, read)
    totals = rig.counters.totals()
    assert (totals["scrubbed_blocks"], totals["scrubbed_bytes"]) == (5, read)
    assert rig.hits(SMALL, BLOCKS) == 3


@pytest.mark.parametrize("where", ["identity", "strip table", "first strip", "last strip"])
def test_a_flipped_bit_anywhere_in_memory_is_a_counted_miss(where: str) -> None:
    rig, layout = Rig(), SMALL.layout
    slot = rig.put(rig.session(), SMALL, BLOCKS)[2]
    at = {
        "identity": 70,
        "strip table": 257,
        "first strip": layout.head_bytes,
        "last strip": layout.head_bytes + 3 * layout.strip_stride + 2 * layout.token_bytes - 1,
    }[where]
    rig.arena.bytes[slot.offset + at] ^= 1
    found = asyncio.run(whole_round(scrubber(rig)))
    assert found.damaged == rig.counters.totals()["damaged_blocks"] == 1
    assert rig.store.exists("default", SMALL, BLOCKS.hashes) == [None, None, Miss.DAMAGED]
    rig.store.check()


def test_bytes_that_no_token_has_are_nobodys_damage() -> None:
    rig, layout = Rig(), SMALL.layout
    slot = rig.put(rig.session(), SMALL, BLOCKS)[2]
    rig.arena.bytes[slot.offset + layout.head_bytes + 2 * layout.token_bytes] ^= 1
    assert asyncio.run(whole_round(scrubber(rig))).damaged == 0


@pytest.mark.parametrize("piece", [4 * KiB, 8 * KiB, 1 * MiB])
def test_a_strip_longer_than_a_piece_is_verified_all_the_same(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", piece)
    monkeypatch.setattr(module, "PIECE_STRIPS", 1)
    rig = Rig()
    slots = rig.put(rig.session(), LARGE, prompt(LARGE, 8))
    assert asyncio.run(whole_round(scrubber(rig))).damaged == 0
    rig.arena.bytes[slots[1].offset + LARGE.layout.head_bytes + LARGE.layout.payload_bytes - 1] ^= 1
    assert asyncio.run(whole_round(scrubber(rig))).damaged == 1


def test_a_damaged_copy_on_ssd_goes_alone_and_is_written_again(tmp_path: Path) -> None:
    async def body(rig: SsdRig) -> None:
        slots = await rig.put_durable(rig.session(), BLOCKS)
        assert slots[1].twin is not None
        before = slots[1].twin.generation
        rig.flip_on_ssd(slots[1].twin)
        found = await whole_round(scrubber(rig))
        assert (found.damaged, rig.hits(SMALL, BLOCKS)) == (1, 3)
        await rig.tiers.durable(slots)
        assert slots[1].twin is not None and slots[1].twin.generation > before
        assert (await whole_round(scrubber(rig))).damaged == 0

    with_ssd(tmp_path, body)


def test_a_damaged_copy_in_memory_goes_alone_and_the_block_is_read_from_ssd(tmp_path: Path) -> None:
    async def body(rig: SsdRig) -> None:
        session = rig.session()
        slots = await rig.put_durable(session, BLOCKS)
        said = rig.read(slots[1], SMALL)
        rig.flip(slots[1], SMALL)
        found = await whole_round(scrubber(rig))
        assert (found.damaged, rig.hits(SMALL, BLOCKS)) == (1, 3)
        async with rig.tiers.brought(rig.store.keys("default", SMALL, BLOCKS.hashes)):
            opened = rig.pinned(session, BLOCKS.hashes[1])
        assert rig.read(opened.slot, SMALL) == said

    with_ssd(tmp_path, body)


def test_the_only_copy_on_ssd_is_a_miss_when_it_is_damaged(tmp_path: Path) -> None:
    async def body(rig: SsdRig) -> None:
        on_ssd = rig.leave_dram(await rig.put_durable(rig.session(), BLOCKS))
        rig.flip_on_ssd(on_ssd[2])
        dram = rig.blocks.slabs.empty_slabs
        found = await whole_round(scrubber(rig))
        assert (found.damaged, rig.hits(SMALL, BLOCKS)) == (1, 2)
        assert rig.blocks.slabs.empty_slabs == dram, "no slot of memory is taken for it"

    with_ssd(tmp_path, body)


def test_a_slot_that_changes_hands_while_it_is_read_is_not_judged(tmp_path: Path) -> None:
    async def body(rig: SsdRig) -> None:
        session = rig.session()
        on_ssd = rig.leave_dram(await rig.put_durable(session, BLOCKS))
        peek = rig.tiers.peek

        async def slow(slot: Slot, at: int, into: memoryview) -> None:
            if slot is on_ssd[2] and slot.state is State.SEALED and at:
                rig.store.remove(rig.store.keys("default", SMALL, BLOCKS.hashes[2:]))
                into[:] = b"\x55" * len(into)
            else:
                await peek(slot, at, into)

        rig.tiers.peek = slow  # type: ignore[method-assign]
        found = await whole_round(scrubber(rig))
        assert found.damaged == rig.counters.totals()["damaged_blocks"] == 0

    with_ssd(tmp_path, body)


async def left_asleep(directory: Path, damaged: int | None = None) -> None:
    """An earlier run's three blocks, one of them damaged if so told."""
    async with SsdRig.started(directory) as rig:
        there = rig.leave_dram(await rig.put_durable(rig.session(), BLOCKS))
    if damaged is not None:
        rig.flip_on_ssd(there[damaged])


def test_what_an_earlier_run_left_is_verified_in_its_sleep_and_is_proven_by_it(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        await left_asleep(tmp_path)
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            found = await whole_round(scrubber(rig))
            assert (found.blocks, found.damaged) == (3, 0)
            assert found.bytes_done == 3 * SMALL.layout.slot_bytes
            assert len(rig.blocks.index.sleepers) == 3 and not list(rig.blocks.index)
            keys = rig.store.keys("default", SMALL, BLOCKS.hashes)
            held = [slot for key in keys if (slot := rig.blocks.index.held(key)) is not None]
            assert [slot.unproven for slot in held] == [False] * 3
            await rig.tiers.durable(held)
            assert rig.counters.totals()["promoted_blocks"] == 0, "read once was enough"

    asyncio.run(run())


def test_of_sleeping_blocks_only_a_damaged_one_wakes_and_goes(tmp_path: Path) -> None:
    async def run() -> None:
        await left_asleep(tmp_path, damaged=0)
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            found = await whole_round(scrubber(rig))
            assert (found.damaged, len(rig.blocks.index.sleepers)) == (1, 2)
            outcomes = rig.store.exists("default", SMALL, BLOCKS.hashes)
            assert outcomes == [Miss.DAMAGED, Miss.UNLISTED, Miss.UNLISTED]

    asyncio.run(run())


@pytest.mark.parametrize("told", [{"tokens": 1 << 31}, {"origin": 7}])
def test_a_record_that_tells_of_another_block_than_lies_there_is_not_proven(
    tmp_path: Path, told: dict[str, int]
) -> None:
    """Whoever reads it finds that out: what is acknowledged as durable could never be had."""

    async def run() -> None:
        await left_asleep(tmp_path)
        records = index_of(tmp_path)
        *_, key = stored_keys(SECRETS["default"], *SMALL.owner, BLOCKS.hashes)
        record = Record.parse(records[key])
        assert record is not None
        put_back(tmp_path, records | {key: replace(record, **told).pack()})
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            found = await whole_round(scrubber(rig))
            assert (found.blocks, found.damaged) == (3, 1)
            outcomes = rig.store.exists("default", SMALL, BLOCKS.hashes)
            assert outcomes == [None, None, Miss.DAMAGED]

    asyncio.run(run())


@pytest.mark.parametrize("damaged", [None, 1])
def test_a_block_that_wakes_while_it_is_looked_at_is_judged_all_the_same(
    tmp_path: Path, damaged: int | None
) -> None:
    async def run() -> None:
        await left_asleep(tmp_path, damaged)
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            keys = rig.store.keys("default", SMALL, BLOCKS.hashes)
            peek = rig.tiers.peek

            async def waking(slot: Slot, at: int, into: memoryview) -> None:
                await peek(slot, at, into)
                rig.blocks.index.held(keys[1])

            rig.tiers.peek = waking  # type: ignore[method-assign]
            found = await whole_round(scrubber(rig))
            assert (found.blocks_done, found.damaged) == (3, damaged is not None)
            held = [slot for key in keys if (slot := rig.blocks.index.held(key)) is not None]
            assert [slot.unproven for slot in held] == [False] * (3 - (damaged is not None))

    asyncio.run(run())


def test_what_the_disk_will_not_read_is_told_and_kept(tmp_path: Path) -> None:
    async def body(rig: SsdRig) -> None:
        rig.leave_dram(await rig.put_durable(rig.session(), BLOCKS))

        async def failing(slot: Slot, at: int, into: memoryview) -> None:
            raise DiskError("reading: failed")

        rig.tiers.peek = failing  # type: ignore[method-assign]
        found = await whole_round(scrubber(rig))
        assert (found.unread, found.damaged, rig.hits(SMALL, BLOCKS)) == (3, 0, 3)

    with_ssd(tmp_path, body)


def test_blocks_that_come_and_go_meanwhile_do_no_harm() -> None:
    rig = Rig()
    session = rig.session()
    rig.put(session, SMALL, BLOCKS)

    async def run() -> None:
        steps = scrubber(rig).round(0)
        await anext(steps)
        rig.store.remove(rig.store.keys("default", SMALL, BLOCKS.hashes[1:]))
        rig.put(session, LARGE, prompt(LARGE, 4))
        *_, last = [one async for one in steps]
        assert (last.blocks, last.blocks_done, last.damaged) == (3, 3, 0)
        assert last.bytes_done == SMALL.layout.slot_bytes

    asyncio.run(run())


def test_its_rate_is_a_ceiling() -> None:
    rig = Rig()
    slots = rig.put(rig.session(), SMALL, BLOCKS)
    rate = SMALL.layout.slot_bytes  # one block a second

    async def run() -> None:
        serving = asyncio.create_task(scrubber(rig, rate).serve())
        for second in range(1, 4):
            await rig.clock.advance(0.9 if second == 1 else 1.0)
            assert rig.counters.totals()["scrubbed_bytes"] <= second * rate
        await rig.clock.advance(10.0)
        assert rig.counters.totals()["scrubbed_blocks"] == len(slots)
        await rig.clock.advance(module.ROUND_SECONDS_MIN - 20.0)
        assert rig.counters.totals()["scrubbed_blocks"] == len(slots), "one round in that time"
        await rig.clock.advance(30.0)
        assert rig.counters.totals()["scrubbed_blocks"] == 2 * len(slots)
        serving.cancel()

    asyncio.run(run())


def test_what_it_was_late_with_it_does_not_make_up_for() -> None:
    rig = Rig()

    async def run() -> None:
        pace = Pace(rig.clock, 100)
        await rig.clock.advance(50.0)
        await pace.spend(100)
        waiting = asyncio.create_task(pace.spend(100))
        await rig.clock.advance(0.9)
        assert not waiting.done()
        await rig.clock.advance(0.1)
        assert waiting.done()

    asyncio.run(run())


def test_a_round_says_in_the_log_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.flip(rig.put(rig.session(), SMALL, BLOCKS)[2], SMALL)
    with caplog.at_level(logging.INFO):
        asyncio.run(whole_round(scrubber(rig)))
    assert "scrubbed 3 of 3 blocks" in caplog.text and "1 copies damaged" in caplog.text
    assert "in DRAM was damaged" in caplog.text


def test_two_rounds_that_were_asked_for_do_not_run_side_by_side() -> None:
    rig = Rig()
    rig.put(rig.session(), SMALL, BLOCKS)
    one = scrubber(rig)

    async def run() -> None:
        first = one.round(0)
        await anext(first)
        with pytest.raises(Overloaded, match="under way"):
            await anext(one.round(0))
        await first.aclose()
        await whole_round(one)

    asyncio.run(run())


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with running(dram="16MiB", slab="8MiB", ssd="128MiB", scrub_rate="0") as started:
        yield started


def test_an_operator_scrubs_a_node_and_learns_of_damage(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    caller = node.caller()
    caller.register(LARGE_SPEC)
    blocks = node_prompt(1, 6, LARGE_SPEC)  # of which memory has room for two
    put_durable(caller, blocks)
    assert main(["scrub", "--node", node.address, "--rate", "0"]) == 0
    assert "6 blocks" in capsys.readouterr().out
    flip_inside(node.directory / "ssd", payload(blocks.hashes[5], LARGE_SPEC, blocks.tokens[5]))
    assert main(["scrub", "--node", node.address, "--json"]) == 1
    assert '"damaged": 1' in capsys.readouterr().out
    assert caller.counters()["damaged_blocks"] == 1
    # The block itself is there or not as it had a copy in memory; no wrong byte is given.
    outcomes, found = caller.get(blocks, LARGE_SPEC)
    for i, outcome in enumerate(outcomes):
        if outcome == pb.HIT:
            assert found[i] == payload(blocks.hashes[i], LARGE_SPEC, blocks.tokens[i])
    assert outcomes[:5] == [pb.HIT] * 5


def test_a_node_scrubs_by_itself_what_it_finds_when_it_starts() -> None:
    with running(dram="16MiB", slab="8MiB", ssd="128MiB", scrub_rate="1GiB") as node:
        caller = node.caller()
        caller.register(LARGE_SPEC)
        blocks = node_prompt(1, 3, LARGE_SPEC)
        put_durable(caller, blocks)
        node.kill()
        flip_inside(node.directory / "ssd", payload(blocks.hashes[1], LARGE_SPEC, blocks.tokens[1]))
        node.start()
        caller = node.caller()
        eventually(lambda: caller.counters()["scrubbed_blocks"] == 3)
        assert caller.counters()["damaged_blocks"] == 1
        assert caller.match(blocks, LARGE_SPEC) == (1, pb.DAMAGED)
