"""A node's lease outlives what holds up its loop, and does not outlive the loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvstore.clock import SystemClock
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord
from kvstore.node import heartbeat
from kvstore.node.heartbeat import Heartbeat
from kvstore.rpc import kept
from tests.nodes import eventually

LEASE_MS = 4_000  # a renewal may be so late on a busy machine
HELD_UP_SECONDS = 2 * LEASE_MS / 1e3
RECORD = NodeRecord("n1", 3, "127.0.0.1:7410", {"dram": 1}, ("shm",), {}, "serving")


def epochs(where: str) -> list[int]:
    """Of the records that others see."""

    async def read() -> list[int]:
        metadata = open_metadata(where)
        try:
            entries, _ = await metadata.list(NodeRecord.prefix)
            return [NodeRecord.parse(entry).epoch for entry in entries]
        finally:
            await metadata.close()

    return asyncio.run(read())


def watched(where: str, seconds: float, seen: list[list[int]]) -> threading.Thread:
    """Looks again and again, as another process would."""

    def look() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen.append(epochs(where))
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def lived(path: Path, busy: float) -> tuple[list[list[int]], list[int], int]:
    """What others saw while a node's loop stood still, what they saw at the end, and how often it
    was told that its lease had lapsed."""
    where, seen, lapses = os.fspath(path / "metadata.db"), list[list[int]](), 0

    def lapsed(record: NodeRecord) -> NodeRecord:
        nonlocal lapses
        lapses += 1
        return NodeRecord(**{**vars(record), "epoch": record.epoch + 1})

    async def live() -> list[int]:
        beat = Heartbeat(
            partial(open_metadata, where), RECORD, LEASE_MS, lapsed, SystemClock(), busy
        )
        await beat.announce()
        assert await asyncio.to_thread(epochs, where) == [3]
        watcher = watched(where, HELD_UP_SECONDS, seen)
        time.sleep(HELD_UP_SECONDS)  # nothing else of the node has a turn
        watcher.join()  # a look that began late is still before anything renews its lease
        here: Callable[[], list[int]] = partial(epochs, where)
        last = await asyncio.to_thread(eventually, here, 20.0)
        await beat.leave()
        assert await asyncio.to_thread(epochs, where) == []
        return last

    return seen, asyncio.run(live()), lapses


def test_a_node_that_is_busy_for_longer_than_its_lease_is_there_all_the_time(
    tmp_path: Path,
) -> None:
    seen, last, lapses = lived(tmp_path, busy=60.0)
    assert all(one == [3] for one in seen) and len(seen) > 3
    assert (last, lapses) == ([3], 0)


def test_a_node_whose_loop_turns_no_more_is_gone_and_comes_back_as_another(tmp_path: Path) -> None:
    seen, last, lapses = lived(tmp_path, busy=0.3)
    assert seen[-1] == [], "others know by then"
    assert (last, lapses) == ([4], 1)


def test_a_bug_met_while_it_comes_back_does_not_leave_it_away_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, failures = os.fspath(tmp_path / "metadata.db"), list[int]()
    monkeypatch.setattr(kept, "PAUSE_SECONDS", 0.01)

    def lapsed(record: NodeRecord) -> NodeRecord:
        if not failures:
            raise ValueError("a bug")
        return NodeRecord(**{**vars(record), "epoch": record.epoch + 1})

    async def live() -> None:
        beat = Heartbeat(
            *(partial(open_metadata, where), RECORD, LEASE_MS, lapsed, SystemClock(), 0.3),
            failed=lambda: failures.append(1),
        )
        await beat.announce()
        watcher = watched(where, HELD_UP_SECONDS, [])
        time.sleep(HELD_UP_SECONDS)  # its lease lapses, which others see
        watcher.join()  # a look that began late is still before anything renews its lease
        await asyncio.to_thread(eventually, lambda: epochs(where) == [4], 20.0)
        await beat.leave()

    asyncio.run(live())
    assert failures == [1]


def test_a_node_ends_where_the_metadata_does_not_let_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    where = os.fspath(tmp_path / "metadata.db")
    monkeypatch.setattr(heartbeat, "_END_SECONDS", 0.3)

    class Stubborn:
        """Never says that a lease was taken back."""

        def __init__(self) -> None:
            self._real = open_metadata(where)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        async def revoke(self, _: object) -> None:
            await self._real.close()
            await asyncio.sleep(60)

    async def live() -> None:
        opened: Any = Stubborn
        beat = Heartbeat(opened, RECORD, LEASE_MS, lambda record: record, SystemClock())
        await beat.announce()
        await beat.leave()

    asyncio.run(live())
    assert "ends with its lease" in caplog.text
    eventually(lambda: epochs(where) == [])
