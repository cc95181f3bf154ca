"""A node's sign of life, on real metadata whose answers can be lost."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from kvstore.clock import SimClock
from kvstore.errors import Unavailable
from kvstore.metadata.announcer import _LOOKS, Announcer
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.records import NodeRecord
from tests.metadata.conftest import PATIENCE_S

LEASE_MS = 2_000
RECORD = NodeRecord("n1", 3, "127.0.0.1:7410", {"dram": 1}, ("shm",), {}, "serving")


class Turns:
    """A clock whose sleepers wake when a test says so."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._asleep = asyncio.Event()
        self._wake = asyncio.Event()

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._wake.clear()
        self._asleep.set()
        await self._wake.wait()

    async def wake(self) -> None:
        """The sleep that the test finds the sleeper in ends."""
        await asyncio.wait_for(self._asleep.wait(), 10)
        self._asleep.clear()
        self._wake.set()

    async def turn(self) -> None:
        """The same; return at the next one."""
        await self.wake()
        await asyncio.wait_for(self._asleep.wait(), 10)


class Cut:
    """The metadata behind a network that loses what is asked, or (`late`) what is answered."""

    def __init__(self, metadata: EmbeddedMetadata) -> None:
        self._metadata = metadata
        self.lost: set[str] = set()
        self.late: set[str] = set()
        self.held: set[str] = set()  # done, and not answered before whoever asked goes
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        async def call(*given: Any, **named: Any) -> Any:
            self.asked[name] += 1
            if name in self.lost:
                raise Unavailable("cut")
            answer = await getattr(self._metadata, name)(*given, **named)
            if name in self.late:
                raise Unavailable("cut")
            if name in self.held:
                await asyncio.Event().wait()
            return answer

        return call


class World:
    """One announcer, kept, and what others see of it."""

    def __init__(self, path: Path, dice: int = 0) -> None:
        self.time, self.turns = SimClock(start=1_000.0), Turns()
        self.metadata = EmbeddedMetadata(path / "metadata.db", clock=self.time, busy_s=PATIENCE_S)
        self.cut = Cut(self.metadata)
        self.lapses = 0
        self.disk_is_full = False
        self.announcer = Announcer(
            *(self.cut, RECORD, LEASE_MS, self._lapsed, self.turns, random.Random(dice))
        )
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.announcer.announce()
        self._keeping = asyncio.create_task(self.announcer.keep())
        return self

    async def __aexit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if failed is None:
                await self.end()
        finally:
            await self.metadata.close()

    async def turn(self, *, after: float = 0.0) -> None:
        await self.time.advance(after)
        await self.turns.turn()

    async def lapse(self) -> None:
        """Others see that its lease ended, and then its turn comes."""
        await self.time.advance(2 * LEASE_MS / 1e3)
        assert await self.record() is None
        await self.turns.turn()

    async def record(self) -> NodeRecord | None:
        entry = await self.metadata.get(RECORD.key())
        return None if entry is None else NodeRecord.parse(entry)

    async def end(self) -> None:
        assert self._keeping is not None and not self._keeping.done()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self.announcer.leave()
        assert await self.record() is None

    def _lapsed(self, record: NodeRecord) -> NodeRecord:
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lapses += 1
        return replace(record, epoch=RECORD.epoch + self.lapses)


@contextmanager
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("kvstore.metadata.announcer")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def announced(test: Callable[[World], Any]) -> Callable[[Path], None]:
    """The test, with a world in which the node has been announced; it leaves at the end."""

    def run(tmp_path: Path) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                async with World(tmp_path) as world:
                    await test(world)

        asyncio.run(bounded())

    run.__doc__ = test.__doc__
    return run


@announced
async def test_a_record_outlives_its_lease_while_it_is_kept(world: World) -> None:
    for _ in range(10):
        await world.turn(after=0.9 * LEASE_MS / 1e3)
        assert await world.record() == RECORD
    assert world.lapses == 0


@announced
async def test_renewals_come_in_time_for_two_to_fail_and_not_in_step(world: World) -> None:
    for _ in range(50):
        await world.turn()
    assert max(world.turns.slept) <= LEASE_MS / 3e3
    assert min(world.turns.slept) >= 0.5 * LEASE_MS / 3e3
    assert len(set(world.turns.slept)) > 40


@announced
async def test_who_lost_the_lease_is_told_once_and_comes_back_in_another_epoch(
    world: World,
) -> None:
    await world.lapse()
    assert world.lapses == 1
    assert await world.record() is None, "told before it is back"
    assert world.turns.slept[-1] <= LEASE_MS / 1e3
    await world.turn()
    back = await world.record()
    assert back is not None and back.epoch == RECORD.epoch + 1
    await world.turn(after=0.9 * LEASE_MS / 1e3)
    assert world.lapses == 1 and await world.record() == back


def test_a_thousand_who_lost_their_leases_do_not_come_back_at_once(tmp_path: Path) -> None:
    async def pause(dice: int) -> float:
        async with World(tmp_path / str(dice), dice) as world:
            await world.lapse()
            return world.turns.slept[-1]

    async def all_pauses() -> list[float]:
        return [await pause(dice) for dice in range(30)]

    pauses = sorted(asyncio.run(all_pauses()))
    assert pauses[0] < 0.2 * LEASE_MS / 1e3 and pauses[-1] > 0.8 * LEASE_MS / 1e3
    gaps = [later - sooner for sooner, later in itertools.pairwise(pauses)]
    assert max(gaps) < 0.25 * LEASE_MS / 1e3


@announced
async def test_metadata_that_is_away_for_less_than_the_lease_is_no_lapse(world: World) -> None:
    world.cut.lost = {"keep_alive", "grant", "put"}
    for _ in range(20):
        await world.turn()
    world.cut.lost = set()
    await world.turn(after=0.9 * LEASE_MS / 1e3)
    await world.turn(after=0.9 * LEASE_MS / 1e3)
    assert world.lapses == 0 and await world.record() == RECORD


@pytest.mark.parametrize("lost", ["grant", "put"])
def test_who_cannot_come_back_at_once_tries_on_and_is_told_once(tmp_path: Path, lost: str) -> None:
    @announced
    async def test(world: World) -> None:
        world.cut.lost = {lost}
        await world.lapse()
        for _ in range(5):
            await world.turn()
            assert await world.record() is None
        world.cut.lost = set()
        await world.turn()
        assert world.lapses == 1
        assert (await world.record()).epoch == RECORD.epoch + 1
        for _ in range(3):
            await world.turn(after=0.9 * LEASE_MS / 1e3)
            assert await world.record() is not None

    test(tmp_path)


@announced
async def test_who_cannot_begin_another_epoch_is_told_again_and_does_not_come_back_before(
    world: World,
) -> None:
    world.disk_is_full = True
    await world.lapse()
    for _ in range(3):
        await world.turn()
        assert await world.record() is None, "in the epoch that others hold for dead"
    world.disk_is_full = False
    await world.turn()
    await world.turn()
    assert world.lapses == 1
    assert (await world.record()).epoch == RECORD.epoch + 1


@announced
async def test_a_record_whose_put_was_not_answered_is_put_again(world: World) -> None:
    world.cut.late = {"put"}
    await world.lapse()
    await world.turn()
    world.cut.late = set()
    for _ in range(5):
        await world.turn(after=0.9 * LEASE_MS / 1e3)
    assert (await world.record()).epoch == RECORD.epoch + 1, "its first lease is long over"


@announced
async def test_a_record_that_cannot_be_put_takes_one_lease_however_often_it_is_tried(
    world: World,
) -> None:
    world.cut.lost = {"put"}
    await world.lapse()
    before = world.cut.asked["grant"]
    for _ in range(5):
        await world.turn()
    assert world.cut.asked["grant"] - before == 1


@announced
async def test_who_leaves_while_its_record_is_put_takes_it_back(world: World) -> None:
    world.cut.held = {"put"}
    await world.lapse()
    await world.turns.wake()
    while await world.record() is None:
        await asyncio.sleep(0)
    # and it is taken back at the end, as in each of these tests


@announced
async def test_what_could_not_be_said_is_said_with_the_next_renewal(world: World) -> None:
    world.cut.lost = {"put"}
    await world.announcer.change_state("draining")
    assert (await world.record()).state == "serving"
    await world.turn()
    world.cut.lost = set()
    await world.turn()
    assert (await world.record()).state == "draining"


@announced
async def test_a_record_that_somebody_deleted_is_put_again(world: World) -> None:
    await world.turn()
    assert await world.metadata.delete(RECORD.key())
    for _ in range(_LOOKS):
        await world.turn(after=0.5)
    assert await world.record() == RECORD and not world.lapses


@announced
async def test_another_process_of_this_name_is_told_of_once_and_succeeded(world: World) -> None:
    other = replace(RECORD, address="127.0.0.1:7411")
    lease = await world.metadata.grant(3_600_000)
    with logged() as said:
        await world.metadata.put(other.key(), other.encode(), lease=lease.id)
        for _ in range(3 * _LOOKS):
            await world.turn(after=0.5)
        assert await world.record() == other
        assert len(said) == 1 and "another process serves as nodes/n1" in said[0]
    await world.metadata.revoke(lease)
    for _ in range(_LOOKS):
        await world.turn(after=0.5)
    assert await world.record() == RECORD and not world.lapses


@announced
async def test_a_state_is_said_at_once_where_the_metadata_answers(world: World) -> None:
    await world.announcer.change_state("draining")
    assert (await world.record()).state == "draining"


@announced
async def test_an_outage_is_one_line_in_the_log(world: World) -> None:
    with logged() as lines:
        world.cut.lost = {"keep_alive"}
        for _ in range(10):
            await world.turn()
        world.cut.lost = set()
        await world.turn()
        await world.turn()
    assert [line.split(":")[0] for line in lines] == [
        "this process cannot give its sign of life",
        "this process gives its sign of life again",
    ]
