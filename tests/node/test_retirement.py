"""A file that failed is used no more, and a block that was being written to it goes elsewhere."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot
from kvstore.disk.protocol import DiskError, DiskFull, DiskReadOnly
from kvstore.errors import Unavailable
from tests.node.rig import SLAB, SMALL, TOKENS, prompt
from tests.node.tiered_rig import SECONDS, TieredRig
from tests.simulation.sim_disk import SimDisk

FILE_BYTES = 2 * SLAB  # 8 blocks


class Failing(SimDisk):
    """A disk that raises what it is told to, and knows which of its files were synced."""

    def __init__(self, files: int) -> None:
        super().__init__(files, FILE_BYTES, random.Random(files))
        self.errors: dict[tuple[str, int], DiskError] = {}
        self.synced: list[int] = []
        self.written: list[int] = []
        self.recorded: set[bytes] = set()  # by any commit
        self._held: dict[str, tuple[threading.Event, threading.Event]] = {}

    def held(self, call: str) -> tuple[threading.Event, threading.Event]:
        """The next such call says that it has begun, and waits until it may go on."""
        self._held[call] = threading.Event(), threading.Event()
        return self._held[call]

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        self.written.append(file)
        self._fail("write", file)
        super().write(file, offset, parts)

    def sync(self, file: int) -> None:
        self.synced.append(file)
        self._fail("sync", file)
        super().sync(file)

    def commit(self, puts: Any, deletes: Any) -> None:
        self._fail("commit", 0)
        self.recorded |= puts.keys()
        super().commit(puts, deletes)

    def _fail(self, call: str, file: int) -> None:
        if events := self._held.pop(call, None):
            begun, go_on = events
            begun.set()
            assert go_on.wait(SECONDS)
        if error := self.errors.get((call, file)):
            raise error


EIO = DiskError("Input/output error")
WHOSE = "kvstore.node.retirement"  # words of the log


@pytest.mark.parametrize("call", ["sync", "write"])
def test_what_was_being_written_to_a_file_that_failed_is_written_to_another(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Failing(3)
    rig = TieredRig({"/data/a": disk})

    async def work() -> None:
        before = rig.put_some(1)
        assert await rig.durable(before) == ""
        disk.errors[call, 0] = EIO
        after = rig.put_some(2)
        assert await rig.durable(after) == ""
        assert (rig.files(before), rig.files(after)) == ({0}, {1})
        del disk.errors[call, 0]
        tried = len([file for file in disk.synced + disk.written if file == 0])
        for number in range(3, 6):
            assert await rig.durable(rig.put_some(number)) == ""
        assert len([file for file in disk.synced + disk.written if file == 0]) == tried
        for slot in before:
            rig.blocks.leave_tier(slot)
        hashes = prompt(SMALL, 4 * TOKENS, start=1_000).hashes
        async with rig.tiers.brought(rig.store.keys("default", SMALL, hashes)):
            assert rig.hits(SMALL, prompt(SMALL, 4 * TOKENS, start=1_000)) == 4
        assert rig.counters.totals()["promoted_blocks"] == 4, "it is still read"

    rig.run(work)
    assert rig.counters.totals()["ssd_failures"] == 1
    said = [one.getMessage() for one in caplog.records if one.name == WHOSE]
    assert len(said) == 1 and "file 0 of /data/a takes no more blocks (Input/output" in said[0]
    assert "start the node again" in said[0]


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (("commit", 0), EIO),
        (("sync", 0), DiskReadOnly("Read-only")),
        (("write", 0), DiskReadOnly("")),
    ],
)
def test_a_path_whose_index_or_filesystem_fails_is_retired_whole(
    place: tuple[str, int], error: DiskError
) -> None:
    bad, good = Failing(2), Failing(1)
    rig = TieredRig({"bad": bad, "good": good})

    async def work() -> None:
        bad.errors[place] = error
        slots = rig.put_some(1)
        assert await rig.durable(slots) == ""
        assert rig.files(slots) == {2}
        assert len(list(good.scan())) == 4 and not list(bad.scan())

    rig.run(work)
    assert rig.counters.totals()["ssd_failures"] == 1


def test_when_every_file_is_retired_durable_says_why_and_dram_serves() -> None:
    disk = Failing(2)
    rig = TieredRig({"a": disk})
    disk.errors = {("sync", 0): EIO, ("sync", 1): EIO}

    async def work() -> None:
        slots = rig.put_some(1)
        assert "every file of it is retired" in await rig.durable(slots)
        assert disk.synced == [0, 1], "no file was synced again"
        assert "Input/output error" in await rig.durable(rig.put_some(2))
        assert rig.hits(SMALL, prompt(SMALL, 4 * TOKENS, start=2_000)) == 4

    rig.run(work)
    assert disk.synced == [0, 1]


def test_a_block_under_which_files_fail_again_and_again_stays_in_dram_alone() -> None:
    disk = Failing(6)
    rig = TieredRig({"a": disk})
    disk.errors = {("sync", file): EIO for file in range(5)}

    async def work() -> None:
        slots = rig.put_some(1, blocks=1)
        assert "Input/output error" in await rig.durable(slots)
        assert disk.synced == [0, 1, 2]
        assert await rig.durable(rig.put_some(2, blocks=1)) == ""
        assert disk.synced == [0, 1, 2, 3, 4, 5]

    rig.run(work)


def test_a_full_disk_is_no_failure_and_is_asked_again() -> None:
    disk = Failing(1)
    rig = TieredRig({"a": disk})
    disk.errors["commit", 0] = DiskFull("no room")

    async def work() -> None:
        slots = rig.put_some(1)
        assert "no room" in await rig.durable(slots), "who waits is told at once"
        async with asyncio.timeout(SECONDS):
            while not rig.clock._sleepers:
                await asyncio.sleep(0.001)
        disk.errors.clear()
        await rig.clock.advance(1.5)
        assert await rig.durable(slots) == ""

    rig.run(work)
    assert rig.counters.totals()["ssd_failures"] == 0


def test_while_a_disk_stays_full_each_asking_costs_one_block_and_whoever_waits_is_told() -> None:
    disk = Failing(4)
    rig = TieredRig({"a": disk})
    disk.errors["commit", 0] = DiskFull("no room")

    async def work() -> None:
        for number in range(1, 4):
            asked = [asyncio.create_task(rig.durable([slot])) for slot in rig.put_some(number)]
            await rig.clock.advance(1.5)
            assert all("no room" in why for why in await asyncio.gather(*asked))
            async with asyncio.timeout(SECONDS):
                while not rig.clock._sleepers:
                    await asyncio.sleep(0.001)
            assert len(disk.written) == 4 + len(disk.synced[1:])
        disk.errors.clear()
        async with asyncio.timeout(SECONDS):
            while rig.tiers.unwritten:
                await rig.clock.advance(1.5)
                await asyncio.sleep(0.001)
        assert len(disk.recorded) == 12 and len(disk.written) <= 4 + len(disk.synced[1:]) + 10

    rig.run(work)
    assert rig.counters.totals()["ssd_failures"] == 0


@pytest.mark.parametrize("call", ["write", "commit"])
def test_what_a_full_path_does_not_take_another_takes_until_it_is_asked_again(call: str) -> None:
    full, other = Failing(2), Failing(1)
    rig = TieredRig({"full": full, "other": other})
    full.errors = {(call, file): DiskFull("no room") for file in range(2)}

    async def work() -> None:
        slots = rig.put_some(1)
        assert await rig.durable(slots) == ""
        assert rig.files(slots) == {2}
        full.errors.clear()
        await rig.clock.advance(1.5)
        slots = rig.put_some(2, blocks=8)
        assert await rig.durable(slots) == ""
        assert rig.files(slots) & {0, 1}, "it is asked again"

    rig.run(work)
    assert rig.counters.totals()["ssd_failures"] == 0
    assert rig.counters.totals()["evicted_blocks"] == 0


def test_a_path_that_stays_full_is_asked_with_one_block_and_others_take_the_rest() -> None:
    full, other = Failing(2), Failing(3)
    rig = TieredRig({"full": full, "other": other})
    full.errors["commit", 0] = DiskFull("no room")

    async def work() -> None:
        for asked, blocks in enumerate((4, 8, 8)):
            assert await rig.durable(slots := rig.put_some(asked, blocks)) == ""
            assert rig.files(slots) <= {2, 3, 4} and len(full.written) == 4 + asked
            await rig.clock.advance(1.5)

    rig.run(work)


def test_a_full_tier_with_a_retired_file_evicts_from_the_others_alone() -> None:
    disk = Failing(2)
    rig = TieredRig({"a": disk})

    async def work() -> None:
        kept = rig.put_some(1, blocks=8)  # all of file 0
        assert await rig.durable(kept) == ""
        disk.errors["write", 0] = EIO
        rig.ssd.retire(0, FILE_BYTES)
        for number in range(2, 5):
            assert await rig.durable(rig.put_some(number, blocks=8)) == ""
        assert rig.files(kept) == {0}
        assert rig.hits(SMALL, prompt(SMALL, 8 * TOKENS, start=1_000)) == 8

    rig.run(work)
    assert rig.counters.totals()["evicted_blocks"] == 16


@pytest.mark.parametrize("call", ["sync", "commit"])
def test_what_is_dropped_while_it_is_written_is_in_no_index_once_that_was_flushed(
    call: str,
) -> None:
    disk = Failing(1)
    rig = TieredRig({"a": disk})

    async def work() -> None:
        begun, go_on = disk.held(call)
        rig.put_some(1)
        assert await asyncio.to_thread(begun.wait, SECONDS)
        keys = rig.store.keys("default", SMALL, prompt(SMALL, 4 * TOKENS, start=1_000).hashes)
        rig.store.remove(keys)
        flushed = asyncio.create_task(rig.tiers.flushed(keys))
        if call == "sync":
            await flushed
        go_on.set()
        await flushed
        if call == "commit":
            assert len(disk.recorded) == 4 and not list(disk.scan())
        assert await rig.durable(rig.put_some(2)) == ""
        assert len(list(disk.scan())) == 4
        if call == "sync":
            assert disk.recorded == dict(disk.scan()).keys(), "recorded after it was flushed"

    rig.run(work)


def test_what_a_path_cannot_be_told_is_said_of_its_own_blocks_alone() -> None:
    bad, good = Failing(2), Failing(1)
    rig = TieredRig({"bad": bad, "good": good})

    async def removed(slots: list[Slot]) -> None:
        keys = [slot.key for slot in slots]
        rig.store.remove(keys)
        await asyncio.wait_for(rig.tiers.flushed(keys), SECONDS)

    async def work() -> None:
        there = rig.put_some(1)
        assert await rig.durable(there) == ""
        bad.errors["commit", 0] = EIO
        elsewhere = rig.put_some(2)
        assert await rig.durable(elsewhere) == ""
        assert (rig.files(there), rig.files(elsewhere)) == ({0}, {2})
        key = there[3].key
        with pytest.raises(Unavailable, match=r"a restart may bring it back: Input/output error"):
            await removed([there[3]])
        await removed(elsewhere)
        assert not list(good.scan())
        await removed(rig.put_some(3))
        with pytest.raises(Unavailable, match="a restart may bring it back"):
            await rig.tiers.flushed([key])
        with pytest.raises(Unavailable, match="a restart may bring it back"):
            await removed(there[:3])

    rig.run(work)
