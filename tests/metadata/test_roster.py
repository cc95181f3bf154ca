"""The roster is what the metadata says, on a real metadata, whatever was lost on the way."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.clock import Clock, SimClock, SystemClock
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.protocol import Change, Entry, Kind
from kvstore.metadata.records import NodeRecord
from kvstore.metadata.roster import Roster


def record(name: str, epoch: int = 1) -> NodeRecord:
    return NodeRecord(name, epoch, "127.0.0.1:7410", {}, (), {}, "serving")


class Desk:
    """A metadata, and a roster that is kept from it."""

    def __init__(self, path: Path, most: int = 100, clock: Clock | None = None) -> None:
        self.metadata = EmbeddedMetadata(path, clock=clock or SystemClock())
        self.came: list[NodeRecord] = []
        self.gone = 0
        self.roster = Roster(
            *(self.metadata, NodeRecord, SystemClock(), random.Random(1), most),
            *(self.came.append, self._went),
        )

    def _went(self) -> None:
        self.gone += 1

    async def put(self, *records: NodeRecord) -> None:
        for one in records:
            await self.metadata.put(one.key(), one.encode())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    def names(self) -> list[str]:
        return sorted(one.node_id for one in self.roster)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "metadata.db")


async def test_who_was_there_who_comes_changes_and_goes_is_known(desk: Desk) -> None:
    await desk.put(record("a"), record("b"))
    keeping = asyncio.create_task(desk.roster.keep())
    await desk.until(lambda: desk.names() == ["a", "b"])
    await desk.put(record("c"), record("a", epoch=7))
    await desk.until(lambda: len(desk.roster) == 3 and desk.roster.get("a") == record("a", 7))
    await desk.metadata.delete(record("b").key())
    await desk.until(lambda: desk.names() == ["a", "c"])
    assert desk.roster.get("b") is None
    assert desk.came == [record("a"), record("b"), record("c"), record("a", 7)] and desk.gone == 1
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await desk.metadata.close()


async def test_a_lease_that_ends_takes_its_record_out_of_the_roster(tmp_path: Path) -> None:
    clock = SimClock(start=1_000.0)
    desk = Desk(tmp_path / "metadata.db", clock=clock)
    lease = await desk.metadata.grant(1_000)
    await desk.metadata.put(record("leased").key(), record("leased").encode(), lease=lease.id)
    keeping = asyncio.create_task(desk.roster.keep())
    await desk.until(lambda: desk.names() == ["leased"])
    await clock.advance(2.0)
    await desk.until(lambda: desk.names() == [])
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await desk.metadata.close()


async def test_a_bad_record_is_passed_over_and_so_is_one_that_became_bad(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.put(record("good"), record("turns bad"))
    await desk.metadata.put("nodes/bad", b"{")
    keeping = asyncio.create_task(desk.roster.keep())
    with caplog.at_level(logging.WARNING):
        await desk.until(lambda: desk.names() == ["good", "turns bad"])
        await desk.metadata.put(record("turns bad").key(), record("another").encode())
        await desk.until(lambda: desk.names() == ["good"])
    assert "nodes/bad" in caplog.text
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await desk.metadata.close()


async def test_no_more_than_the_most_are_kept_and_one_that_goes_makes_room(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "metadata.db", most=2)
    await desk.put(record("a"), record("b"), record("c"))
    await desk.roster.load()
    assert desk.names() == ["a", "b"]
    await desk.metadata.delete(record("a").key())
    await desk.roster.load()
    assert desk.names() == ["b", "c"]
    await desk.metadata.close()


async def test_one_that_found_no_place_is_there_once_another_goes(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "metadata.db", most=2)
    await desk.put(record("a"), record("b"))
    keeping = asyncio.create_task(desk.roster.keep())
    await desk.until(lambda: desk.names() == ["a", "b"])
    await desk.put(record("c"))
    await desk.metadata.delete(record("a").key())
    await desk.until(lambda: desk.names() == ["b", "c"])
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await desk.metadata.close()


async def test_of_what_is_read_anew_only_what_is_another_than_it_was_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path / "metadata.db", most=4)
    await desk.put(record("a"), record("b"), record("c"), record("d"), record("e"))
    await desk.metadata.put("nodes/bad", b"{")
    await desk.roster.load()
    await desk.metadata.delete(record("b").key())
    await desk.put(record("c", epoch=2), record("d"))
    for _ in range(3):
        await desk.roster.load()
    assert desk.names() == ["a", "c", "d", "e"] and desk.gone == 1
    assert desk.came[4:] == [record("c", 2), record("d"), record("e")], "d may have been gone"
    assert caplog.text.count("nodes/e is passed over") == caplog.text.count("nodes/bad") == 1
    await desk.metadata.close()


class Burst:
    """Stands for a metadata that tells many changes at once."""

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        return [], 0

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        for change in self._changes:
            yield change
        await asyncio.Event().wait()


async def test_others_have_their_turns_while_many_changes_that_came_at_once_are_read() -> None:
    entries = [Entry(one.key(), one.encode(), 1) for one in map(record, map(str, range(2_000)))]
    metadata: Any = Burst([Change(Kind.PUT, entry, 1) for entry in entries])
    roster = Roster(metadata, NodeRecord, SystemClock(), random.Random(1))
    keeping, seen = asyncio.create_task(roster.keep()), set[int]()
    while len(roster) < len(entries):
        seen.add(len(roster))
        await asyncio.sleep(0)
    assert len(seen) > 4
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


class Deaf:
    """Stands for a metadata whose history is another: of what is there its watches tell nothing."""

    def __init__(self, listings: list[list[NodeRecord]]) -> None:
        self._listings, self.lists, self.watched = listings, 0, 0

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        records = self._listings[min(self.lists, len(self._listings) - 1)]
        self.lists += 1
        return [Entry(one.key(), one.encode(), one.epoch) for one in records], 9

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        self.watched += 1
        try:
            await asyncio.Event().wait()
            yield Change(Kind.DELETE, Entry("nodes/a", b"", 10), 10)
        finally:
            self.watched -= 1


async def test_what_no_watch_tells_is_read_anew_and_who_stayed_has_neither_left_nor_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.metadata.watching.WATCHED_SECONDS", (0.001, 0.002))
    stays, left, new = record("stays"), record("left"), record("new")
    metadata: Any = Deaf([[stays, left], [stays, left], [stays, new]])
    came, gone = list[NodeRecord](), list[int]()
    roster = Roster(
        *(metadata, NodeRecord, SystemClock(), random.Random(1), 100),
        *(came.append, lambda: gone.append(metadata.lists)),
    )
    monkeypatch.setattr("kvstore.metadata.roster._RELIST_SECONDS", (0.0, 0.0))
    keeping = asyncio.create_task(roster.keep())
    async with asyncio.timeout(60):
        while metadata.lists < 6:
            assert stays in list(roster) or not metadata.lists
            await asyncio.sleep(0)
    assert came == [stays, left, new] and gone == [3] and metadata.watched <= 1
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not metadata.watched


async def test_what_cannot_be_read_leaves_the_roster_as_it_was(desk: Desk) -> None:
    await desk.put(record("a"))
    await desk.roster.load()
    await desk.metadata.close()
    keeping = asyncio.create_task(desk.roster.keep())
    await asyncio.sleep(0.3)
    assert not keeping.done() and desk.names() == ["a"]
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
