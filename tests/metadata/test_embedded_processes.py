"""The SQLite form among real processes: watched, killed, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvstore.errors import Unavailable
from kvstore.metadata import Kind, open_metadata
from kvstore.metadata.embedded import EmbeddedMetadata

Process = asyncio.subprocess.Process
CHILD = Path(__file__).with_name("child.py")


@contextlib.asynccontextmanager
async def child(*arguments: str | Path) -> AsyncIterator[Process]:
    """Runs until "ready" before the test goes on, and not a moment longer than the test."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await line(process) == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()  # ends a stopped process too
        await process.wait()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


async def test_another_process_sees_a_change_soon(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    delays = []
    async with child("watch", path) as watcher:
        for number in range(20):
            await store.put(f"k/{number}", b"")
            written = time.monotonic()
            key, seen = (await line(watcher)).split()
            assert key == f"k/{number}"
            delays.append(float(seen) - written)  # one monotonic clock for the whole host
    assert sorted(delays)[5] < 0.1, delays  # of 20: it may wait for a CPU again and again
    await store.close()


async def test_a_killed_holders_keys_vanish_after_its_ttl(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    async with child("hold-lease", path, "3000") as holder:
        _, revision = await store.list("nodes/")
        await asyncio.sleep(4.0)  # kept alive for longer than its TTL
        assert await store.get("nodes/child") is not None
        watch = store.watch("nodes/", revision)
        gone = asyncio.ensure_future(anext(watch))
        holder.kill()
        killed = time.monotonic()
        assert (await asyncio.wait_for(gone, 30)).kind is Kind.DELETE
        assert time.monotonic() - killed > 0.5, "not with its holder, but with its time"
        assert await store.get("nodes/child") is None
    await store.close()


async def test_a_killed_holders_keys_are_gone_for_one_who_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with child("hold-lease", path, "2000") as holder:
        holder.kill()
        await holder.wait()
        await asyncio.sleep(2.1)  # nobody has the file open
        store = open_metadata(str(path))
        assert await store.get("nodes/child") is None
        assert (await store.list("nodes/"))[0] == []
    await store.close()


async def test_a_stopped_holder_is_gone_too_and_learns_it(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    async with child("hold-lease", path, "2000") as holder:
        holder.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2.1)
        assert await store.get("nodes/child") is None
        holder.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(holder.wait(), 30) == 1  # LeaseLost ends it
        assert await store.get("nodes/child") is None
    await store.close()


async def test_a_killed_writer_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    for pause in (0.0, 0.003, 0.011):
        async with child("write-on", path) as writer:
            await asyncio.sleep(pause)
            writer.kill()
            await writer.wait()
        store = open_metadata(str(path))  # checks the file
        entries, revision = await store.list("")
        replayed = {}
        watch = store.watch("", 0)
        async for change in watch:
            replayed[change.entry.key] = change.entry
            if change.kind is Kind.DELETE:
                del replayed[change.entry.key]
            if change.revision == revision:
                break
        await watch.aclose()
        assert replayed == {entry.key: entry for entry in entries}
        assert await store.put("after", b"") == revision + 1
        await store.close()


async def test_a_stopped_writer_holds_up_writes_until_the_deadline_only(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = EmbeddedMetadata(path, busy_s=3.0)
    before = await store.put("k/a", b"before")
    watch = store.watch("k/", before)
    async with child("hold-lock", path) as holder:
        holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        answers = await asyncio.gather(
            *(store.put("k/a", b"during") for _ in range(10)), return_exceptions=True
        )
        assert time.monotonic() - start < 15.0, "calls must not wait for each other's deadlines"
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert str(path) in str(answers[0])
        writing = asyncio.create_task(store.put("k/a", b"during"))
        entry = await store.get("k/a")
        assert not writing.done(), "reads pass a waiting write"
        assert entry is not None and entry.value == b"before"
        with pytest.raises(Unavailable):
            await writing
        with pytest.raises(Unavailable, match=r"metadata\.db"):
            EmbeddedMetadata(path, busy_s=0.1)
        holder.send_signal(signal.SIGCONT)
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        assert await line(holder) == "done"
        after = await store.put("k/a", b"after")
    assert after == before + 1, "what was refused must not have happened"
    assert (await anext(watch)).entry.value == b"after"
    await store.close()


async def test_a_waiting_write_goes_on_when_the_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    async with child("hold-lock", path) as holder:
        writing = asyncio.create_task(store.put("k", b""))
        await asyncio.sleep(0.1)
        assert not writing.done()
        os.kill(holder.pid, signal.SIGKILL)  # its transaction ends with it
        assert await writing == 1
    await store.close()


async def test_who_opens_waits_longer_for_the_lock_than_a_call_does(tmp_path: Path) -> None:
    """A process that cannot open it ends; one whose call fails goes on, and calls again."""
    path, busy = tmp_path / "metadata.db", 1.0
    await open_metadata(str(path)).close()
    async with child("hold-lock", path) as holder:
        opening = asyncio.create_task(asyncio.to_thread(EmbeddedMetadata, path, busy_s=busy))
        await asyncio.sleep(1.5 * busy)
        assert not opening.done()
        os.kill(holder.pid, signal.SIGKILL)
        store = await opening
    assert await store.put("k", b"") == 1
    await store.close()


async def test_writers_in_many_processes_all_get_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    async with child("write-on", path), child("write-on", path):
        for number in range(20):
            await store.put(f"mine/{number}", b"")
    assert len((await store.list("mine/"))[0]) == 20
    await store.close()
