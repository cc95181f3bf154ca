"""What was purged is served by nobody: not from memory, not from SSD, not after any restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State
from kvstore.core.tombstones import Tombstones
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.errors import Lapsed, Unavailable, WindowClosed
from kvstore.metadata import Metadata, open_metadata
from kvstore.node.purge import Purge, Scope, load_tombstones
from tests.node.rig import LARGE, SMALL, prompt
from tests.node.ssd_rig import SsdRig, index_of, put_back

BLOCKS = prompt(SMALL, 10)
OURS = Scope(namespace=SMALL.owner[0])
HIT = None


class Purging:
    """A rig with an SSD, its metadata, and the purge of both."""

    def __init__(self, rig: SsdRig, metadata: Metadata) -> None:
        self.rig, self.metadata = rig, metadata
        before = rig.epoch << 40
        self.purge = Purge(
            *(rig.store, metadata, rig.tiers, "node", before, rig.clock, rig.counters)
        )

    def outcomes(self, tenant: str = "default") -> list[Miss | None]:
        return self.rig.store.exists(tenant, SMALL, BLOCKS.hashes)


def at_a_node(
    directory: Path, body: Callable[[Purging], Awaitable[None]], epoch: int = 1
) -> Tombstones:
    """Run the body at a node that starts in the directory; its tombstones afterwards."""

    async def run() -> Tombstones:
        metadata = open_metadata(str(directory / "metadata.db"))
        try:
            found = await load_tombstones(metadata, "node")
            async with SsdRig.started(directory / "ssd", epoch, found) as rig:
                await body(Purging(rig, metadata))
            return await load_tombstones(metadata, "node")
        finally:
            await metadata.close()

    return asyncio.run(run())


def test_a_namespace_goes_from_both_tiers_and_another_stays(tmp_path: Path) -> None:
    others = prompt(LARGE, 8)

    async def body(at: Purging) -> None:
        rig, session = at.rig, at.rig.session()
        slots = await rig.put_durable(session, BLOCKS)
        rig.leave_dram(slots[1:])
        rig.put(session, LARGE, others)
        assert await at.purge.carry_out(OURS) == 3
        assert at.outcomes() == [Miss.REMOVED] * 3
        assert rig.hits(LARGE, others) == 2
        assert rig.counters.totals()["purged_blocks"] == 3
        await rig.tiers.durable(list(rig.blocks.index))

    at_a_node(tmp_path, body)
    assert len(index_of(tmp_path / "ssd")) == 2


def test_a_tenant_goes_and_another_in_the_same_namespace_stays(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        for tenant in ("default", "other"):
            await at.rig.put_durable(at.rig.session(tenant), BLOCKS)
        assert await at.purge.carry_out(Scope(tenant="other")) == 3
        assert at.outcomes("other") == [Miss.REMOVED] * 3
        assert at.outcomes() == [HIT] * 3

    at_a_node(tmp_path, body)

    async def later(at: Purging) -> None:
        assert at.outcomes() == [HIT] * 3
        assert at.outcomes("other") == [Miss.ABSENT] * 3

    at_a_node(tmp_path, later, epoch=2)


def test_it_can_be_used_again_at_once_and_that_survives(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        session = at.rig.session()
        await at.rig.put_durable(session, BLOCKS)
        await at.purge.carry_out(OURS)
        await at.rig.put_durable(session, BLOCKS)
        assert at.outcomes() == [HIT] * 3

    async def later(at: Purging) -> None:
        assert at.outcomes() == [HIT] * 3

    at_a_node(tmp_path, body)
    at_a_node(tmp_path, later, epoch=2)


def test_the_tombstone_alone_keeps_it_away_and_its_records_are_deleted(tmp_path: Path) -> None:
    ssd = tmp_path / "ssd"

    async def put(at: Purging) -> None:
        await at.rig.put_durable(at.rig.session(), BLOCKS)

    async def purge(at: Purging) -> None:
        assert at.outcomes() == [HIT] * 3
        await at.purge.carry_out(OURS)

    async def later(at: Purging) -> None:
        assert at.outcomes() == [Miss.ABSENT] * 3
        await at.rig.tiers.flushed(())

    at_a_node(tmp_path, put)
    records = index_of(ssd)
    assert len(records) == 3
    at_a_node(tmp_path, purge, epoch=2)
    assert index_of(ssd) == {}
    put_back(ssd, records)
    at_a_node(tmp_path, later, epoch=3)
    assert index_of(ssd) == {}


def test_what_sleeps_goes_and_what_others_left_sleeps_on(tmp_path: Path) -> None:
    async def put(at: Purging) -> None:
        for tenant in ("default", "other"):
            await at.rig.put_durable(at.rig.session(tenant), BLOCKS)

    async def purge(at: Purging) -> None:
        index = at.rig.blocks.index
        assert len(index.sleepers) == 6
        assert await at.purge.carry_out(Scope(tenant="other")) == 3
        assert len(index.sleepers) == 3 and not list(index)
        assert at.outcomes("other") == [Miss.REMOVED] * 3
        assert at.outcomes() == [HIT] * 3

    at_a_node(tmp_path, put)
    at_a_node(tmp_path, purge, epoch=2)
    assert len(index_of(tmp_path / "ssd")) == 3


def test_a_retired_file_is_not_asked_and_the_reply_says_so(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        rig, asked = at.rig, list[int]()
        slots = await rig.put_durable(rig.session(), BLOCKS)
        assert slots[0].twin is not None
        file = rig.volumes.file_of(slots[0].twin.offset)
        rig.tiers._down.retirement.failed(file, DiskError("sync: no such luck"))
        rig.volumes.sync = asked.append  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match=r"purged from memory, but .*no such luck"):
            await at.purge.carry_out(OURS)
        assert file not in asked
        assert at.outcomes() == [Miss.REMOVED] * 3

    tombstones = at_a_node(tmp_path, body)
    assert tombstones.namespaces.keys() == {SMALL.owner[0]}, "a restart does not bring it back"
    assert index_of(tmp_path / "ssd") == {}


def test_the_heads_on_ssd_are_overwritten(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        slots = await at.rig.put_durable(at.rig.session(), BLOCKS)
        there = [slot.twin.offset for slot in slots if slot.twin is not None]
        await at.purge.carry_out(OURS)
        assert len(there) == 3
        for offset in there:
            head = bytearray(DISK_ALIGN)
            at.rig.volumes.read(offset, memoryview(head))
            assert not any(head)

    at_a_node(tmp_path, body)


def test_a_block_that_is_being_written_to_ssd_is_not_there_afterwards(tmp_path: Path) -> None:
    """The purge comes between the block's bytes and its record."""

    async def body(at: Purging) -> None:
        rig, reached, go_on = at.rig, asyncio.Event(), asyncio.Event()
        write = rig.threads.write

        async def held(call: Callable[..., object], *given: object) -> object:
            if call == rig.volumes.sync and not reached.is_set():
                reached.set()
                await go_on.wait()
            return await write(call, *given)

        rig.threads.write = held  # type: ignore[method-assign,assignment]
        rig.put(rig.session(), SMALL, BLOCKS)
        await reached.wait()
        targets = [slot.offset for slot in rig.tiers.being_written()]
        purging = asyncio.create_task(at.purge.carry_out(OURS))
        async with asyncio.timeout(10.0):
            while at.outcomes() != [Miss.REMOVED] * 3:
                await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not purging.done(), "the batch under way may yet record it"
        go_on.set()
        assert await purging == 3
        for offset in targets:
            head = bytearray(DISK_ALIGN)
            rig.volumes.read(offset, memoryview(head))
            assert not any(head)

    at_a_node(tmp_path, body)
    assert index_of(tmp_path / "ssd") == {}


def test_a_writer_that_seals_later_is_refused(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        rig = at.rig
        session, reader = rig.session(), rig.session()
        (window,) = rig.reserve(session, SMALL, BLOCKS, 0, 1)
        hand_off = rig.hand_off(window)
        rig.write(window.slot, SMALL)
        await at.purge.carry_out(OURS)
        with pytest.raises(WindowClosed):
            rig.store.seal(session, [window.handle])
        found = rig.store.open(reader, SMALL, BLOCKS.hashes[:1], [hand_off])
        assert found == [Miss.ABSENT]
        assert window.slot.state is State.DOOMED, "the writer may still write there"
        rig.store.abort(session, [window.handle])
        assert rig.put(session, SMALL, BLOCKS)

    at_a_node(tmp_path, body)


def test_what_is_sealed_while_it_goes_on_goes_as_well(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        rig, session = at.rig, at.rig.session()
        rig.put(session, SMALL, BLOCKS, 0, 2)
        (window,) = rig.reserve(session, SMALL, BLOCKS, 2, 3)
        rig.write(window.slot, SMALL)
        sleep = rig.clock.sleep

        async def sealing(seconds: float) -> None:
            if window.slot.state is State.FILLING:
                assert rig.store.seal(session, [window.handle]) == ["sealed"]
            await sleep(seconds)

        rig.clock.sleep = sealing  # type: ignore[method-assign]
        assert await at.purge.carry_out(OURS) == 3
        assert at.outcomes() == [Miss.REMOVED] * 3

    at_a_node(tmp_path, body)


def test_a_pin_ends_and_its_handle_opens_nothing(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        rig, session = at.rig, at.rig.session()
        rig.put(session, SMALL, BLOCKS)
        opened = rig.pinned(session, BLOCKS.hashes[0])
        generation = opened.slot.generation
        await at.purge.carry_out(OURS)
        with pytest.raises(Lapsed):
            rig.store.claims.pin(session, opened.handle, "handle")
        assert opened.slot.generation != generation, "a reader that copies from it notices"
        assert rig.store.readers.close(session, [opened.handle]) == ([False], [None])

    at_a_node(tmp_path, body)


def test_a_read_under_way_from_ssd_brings_nothing_back(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        rig, session = at.rig, at.rig.session()
        rig.leave_dram(await rig.put_durable(session, BLOCKS))
        async with rig.tiers.brought(rig.store.keys("default", SMALL, BLOCKS.hashes)):
            purging = asyncio.create_task(at.purge.carry_out(OURS))
            await purging
            assert rig.store.open(session, SMALL, BLOCKS.hashes) == [Miss.REMOVED] * 3

    at_a_node(tmp_path, body)


def test_a_place_is_given_to_nobody_before_its_head_is_overwritten(tmp_path: Path) -> None:
    """Else the zeros would land on the head of the next block there."""

    async def body(at: Purging) -> None:
        rig, session = at.rig, at.rig.session()
        there: list[Slot] = rig.leave_dram(await rig.put_durable(session, BLOCKS))
        erase, seen = rig.tiers.erase, list[State]()

        async def watched(slots: list[Slot]) -> None:
            seen.extend(slot.state for slot in slots)
            await erase(slots)
            seen.extend(slot.state for slot in slots)

        rig.tiers.erase = watched  # type: ignore[method-assign,assignment]
        await at.purge.carry_out(OURS)
        assert seen == [State.DOOMED] * 6
        assert [slot.state for slot in there] == [State.EMPTY] * 3

    at_a_node(tmp_path, body)


@pytest.mark.parametrize("failing", ["commit", "write", "sync"])
def test_a_disk_that_fails_is_told_of(tmp_path: Path, failing: str) -> None:
    async def body(at: Purging) -> None:
        await at.rig.put_durable(at.rig.session(), BLOCKS)

        def fails(*given: object) -> None:
            raise DiskError(f"{failing}: failed")

        setattr(at.rig.volumes.disks[0], failing, fails)
        with pytest.raises(Unavailable, match=f"purged from memory, but .*{failing}: failed"):
            await at.purge.carry_out(OURS)
        assert at.outcomes() == [Miss.REMOVED] * 3

    tombstones = at_a_node(tmp_path, body)
    assert tombstones.namespaces.keys() == {SMALL.owner[0]}, "a restart does not bring it back"

    async def later(at: Purging) -> None:
        assert at.outcomes() == [Miss.ABSENT] * 3

    at_a_node(tmp_path, later, epoch=2)


def test_without_metadata_nothing_is_purged(tmp_path: Path) -> None:
    async def body(at: Purging) -> None:
        at.rig.put(at.rig.session(), SMALL, BLOCKS)

        async def away(key: str, value: bytes) -> None:
            raise Unavailable("no answer")

        at.metadata.put = away  # type: ignore[method-assign,assignment]
        with pytest.raises(Unavailable, match="nothing was purged: no answer"):
            await at.purge.carry_out(OURS)
        assert at.outcomes() == [HIT] * 3

    at_a_node(tmp_path, body)
