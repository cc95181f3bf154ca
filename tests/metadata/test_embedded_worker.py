"""The store's one thread: polls for watchers only, refuses what it cannot hold, answers all."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from kvstore.errors import Unavailable
from kvstore.metadata import StoreClosed, change_log, ledger, open_metadata, worker


async def test_nobody_polls_while_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = worker.Worker._look

    def counted(self: worker.Worker, book: ledger.Ledger) -> None:
        nonlocal looks
        looks += "polls nobody" in self._name  # of this store: another test's may not be gone yet
        look(self, book)

    monkeypatch.setattr(worker.Worker, "_look", counted)
    store = open_metadata(str(tmp_path / "polls nobody.db"))
    await store.put("k", b"")
    await asyncio.sleep(0.1)
    assert looks == 0
    watches = [store.watch("k", 0) for _ in range(5)]
    for watch in watches:
        await anext(watch)
    looks, since = 0, time.monotonic()
    while looks < 40:
        await asyncio.sleep(0.01)
    most = 2 * (time.monotonic() - since) / worker.POLL_S + 10
    assert looks <= most, "one poller for all five"
    for watch in watches:
        await watch.aclose()
    await asyncio.sleep(0.02)
    looks = 0
    await asyncio.sleep(0.1)
    assert looks <= 1
    await store.close()


async def test_a_store_in_which_nothing_happens_is_looked_at_less_often_until_something_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    patience = worker.Worker._patience

    def told(self: worker.Worker) -> float | None:
        waits.append(patience(self))
        return waits[-1]

    monkeypatch.setattr(worker.Worker, "_patience", told)
    monkeypatch.setattr(worker, "QUIET_S", 0.1)
    store, other = (open_metadata(str(tmp_path / "metadata.db")) for _ in range(2))
    watch = store.watch("k", 0)
    await store.put("k", b"")
    await anext(watch)
    waiting = asyncio.create_task(anext(watch))
    while worker.POLL_QUIET_S not in waits:
        await asyncio.sleep(0.01)
    waits.clear()
    await other.put("k", b"1")
    assert (await waiting).revision == 2
    while worker.POLL_S not in waits:  # unless the thread had no CPU until it was quiet again
        await other.put("k", b"2")
    await store.close()
    await other.close()


async def test_a_watch_with_nothing_to_see_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    changes = ledger.Ledger.changes

    def counted(self: ledger.Ledger, prefix: bytes, cursor: int) -> change_log.Page:
        nonlocal looks
        looks += 1
        return changes(self, prefix, cursor)

    monkeypatch.setattr(ledger.Ledger, "changes", counted)
    store = open_metadata(str(tmp_path / "metadata.db"))
    watch = store.watch("k", 0)
    await store.put("k", b"")
    await anext(watch)
    waiting = asyncio.create_task(anext(watch))
    await asyncio.sleep(0.3)
    assert looks <= 5  # one for the put, one to find no more, some for late rings
    await store.put("k", b"")
    assert (await waiting).revision == 2
    await store.close()


async def test_too_many_waiting_calls_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CALLS_MAX", 3)
    store = open_metadata(str(tmp_path / "metadata.db"))
    begun, go_on = threading.Event(), threading.Event()

    def stand_still(_: ledger.Ledger) -> None:
        begun.set()
        go_on.wait(30)

    standing = asyncio.create_task(store._worker.call(stand_still))  # type: ignore[attr-defined]
    await asyncio.to_thread(begun.wait, 30)
    calls = [asyncio.create_task(store.put("k", b"")) for _ in range(50)]
    while sum(one.done() for one in calls) < 47:
        await asyncio.sleep(0)
    go_on.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert len(refused) == 47 and all(answer.retry_after_ms for answer in refused)
    await standing
    assert await store.get("k") is not None
    await store.close()


async def test_calls_under_way_when_it_closes_are_all_answered(tmp_path: Path) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    calls = [asyncio.create_task(store.put("k", b"")) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, int | StoreClosed) for answer in answers)
    assert not [t for t in threading.enumerate() if t.name == f"metadata {tmp_path}/metadata.db"]
