"""The SQLite form alone: its leases over time, its bounds, its one poller."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from kvstore.clock import SimClock
from kvstore.errors import ConfigError, Overloaded, Unavailable
from kvstore.metadata import Compacted, LeaseLost, change_log, ledger, open_metadata
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.sqlite_file import SqliteFile


def raw(path: Path, statement: str) -> list[Any]:
    """Behind the store's back."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        return database.execute(statement).fetchall()
    finally:
        database.close()


async def test_leases_of_another_boot_are_dead(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    lease = await store.grant(3_600_000)
    start = await store.put("nodes/a", b"", lease=lease.id)
    await store.close()
    raw(path, "UPDATE head SET boot = 'another'")
    again = open_metadata(str(path))
    assert await again.get("nodes/a") is None
    assert (await anext(again.watch("nodes/", start))).entry.key == "nodes/a"
    await again.close()


async def test_a_file_that_another_host_uses_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    raw(path, "UPDATE head SET boot = 'another'")
    with pytest.raises(ConfigError, match="another host"):
        await store.put("k", b"")
    await store.close()


async def test_the_wall_clock_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    lease = await store.grant(60_000)
    await store.put("nodes/a", b"", lease=lease.id)
    for jump in (1e9, -1e9):
        wall = time.time() + jump
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        assert await store.get("nodes/a") is not None
        await store.keep_alive(lease)
    await store.close()


async def test_a_lease_that_nobody_saw_end_is_kept_alive(tmp_path: Path) -> None:
    """Its holder stood still for a while, alone on its host."""
    clock = SimClock()
    store, other = (EmbeddedMetadata(tmp_path / "metadata.db", clock=clock) for _ in range(2))
    lease, others = await store.grant(2_000), await store.grant(2_000)
    await store.put("nodes/a", b"", lease=lease.id)
    await store.put("nodes/b", b"", lease=others.id)
    await clock.advance(3)
    await store.keep_alive(lease)
    assert [entry.key for entry in (await other.list("nodes/"))[0]] == ["nodes/a"]
    await clock.advance(3)
    assert await other.get("nodes/a") is None
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    await store.close()
    await other.close()


async def test_a_watcher_that_stood_still_with_the_holder_of_a_lease_does_not_end_it(
    tmp_path: Path,
) -> None:
    clock = SimClock()
    watching, holding = (
        ledger.Ledger(SqliteFile(tmp_path / "metadata.db"), clock, 10) for _ in range(2)
    )
    lease = holding.grant(2_000)
    holding.put(b"nodes/a", b"", lease.id)
    assert watching.moved()
    await clock.advance(3)
    assert not watching.moved()
    holding.keep_alive(lease)
    await clock.advance(3)
    assert [watching.moved() for _ in range(3)] == [False, False, True]
    with pytest.raises(LeaseLost):
        holding.keep_alive(lease)
    watching.close()
    holding.close()


async def test_a_lease_ends_on_time_with_only_a_watcher_looking(tmp_path: Path) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    asked = time.monotonic()
    lease = await store.grant(2_000)
    start = await store.put("nodes/a", b"", lease=lease.id)
    await asyncio.wait_for(anext(store.watch("nodes/", start)), 30)
    assert time.monotonic() - asked >= 2.0
    await store.close()


async def test_the_change_log_keeps_no_more_than_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    store = EmbeddedMetadata(path, changes_kept=10)
    for _ in range(25):
        await store.put("k", bytes(100))
    assert raw(path, "SELECT min(revision), max(revision) FROM changes") == [(16, 25)]
    monkeypatch.setattr(change_log, "CHANGE_BYTES_KEPT", 500)
    last = await store.put("k", bytes(100))
    assert raw(path, "SELECT count(*), sum(length(key) + length(value)) FROM changes") == [(4, 404)]
    assert raw(path, "SELECT compacted, change_bytes FROM head") == [(last - 4, 404)]
    await store.close()


async def test_a_watcher_that_falls_behind_is_told_and_not_buffered(tmp_path: Path) -> None:
    store = EmbeddedMetadata(tmp_path / "metadata.db", changes_kept=10)
    await store.put("k", b"0")
    watch = store.watch("k", 0)
    assert (await anext(watch)).revision == 1
    for _ in range(20):
        await store.put("k", b"")
    with pytest.raises(Compacted) as caught:
        await anext(watch)
    assert caught.value.compact_revision == 11
    await store.close()


async def test_a_long_history_is_read_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    for number in range(30):
        await store.put("k" if number % 2 else "other", bytes(number))
    for bound, value in (("PAGE_CHANGES_MAX", 4), ("PAGE_BYTES_MAX", 40)):
        monkeypatch.setattr(change_log, bound, value)
        watch = store.watch("k", 0)
        assert [len((await anext(watch)).entry.value) for _ in range(15)] == list(range(1, 30, 2))
        await watch.aclose()
    await store.close()


async def test_leases_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimClock()
    store = EmbeddedMetadata(tmp_path / "metadata.db", clock=clock)
    monkeypatch.setattr(ledger, "LEASES_MAX", 2)
    await store.grant(1_000)
    await store.grant(1_000)
    with pytest.raises(Overloaded, match="2 leases"):
        await store.grant(1_000)
    await clock.advance(2)
    await store.grant(1_000)
    await store.close()


async def test_a_full_file_refuses_writes_and_still_reads(tmp_path: Path) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    await store.put("k", b"kept")

    def shrink(book: Any) -> None:
        book._file.rows("PRAGMA max_page_count = 1")  # SQLite raises it to the present size

    await store._worker.call(shrink)  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match=r"metadata\.db has reached"):
        await store.put("big", bytes(1_000_000))
    entry = await store.get("k")
    assert entry is not None and entry.value == b"kept"
    assert await store.get("big") is None
    await store.close()
