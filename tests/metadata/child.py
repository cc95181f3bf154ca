"""The other process: `child.py WORK PATH ...`, says "ready" once it is where the test wants it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvstore.metadata import open_metadata


def say(text: str) -> None:
    print(text, flush=True)


async def hold_lease(path: str, ttl_ms: str) -> None:
    store = open_metadata(path)
    lease = await store.grant(int(ttl_ms))
    await store.put("nodes/child", b"", lease=lease.id)
    say("ready")
    while True:
        await asyncio.sleep(int(ttl_ms) / 4_000)
        await store.keep_alive(lease)


async def write_on(path: str) -> None:
    store = open_metadata(path)
    for number in range(1_000_000):
        await store.put(f"k/{number % 5}", bytes(2_000))
        if number % 3 == 0:
            await store.delete(f"k/{number % 5}")
        if number == 10:
            say("ready")


async def watch(path: str) -> None:
    store = open_metadata(path)
    say("ready")
    async for change in store.watch("k/", 0):
        say(f"{change.entry.key} {time.monotonic()}")


def hold_lock(path: str) -> None:
    """A writer inside its transaction, until a line comes in."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE head SET revision = revision + 1000")
    say("ready")
    sys.stdin.readline()
    database.execute("ROLLBACK")
    say("done")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hold-lease", path, ttl_ms]:
            asyncio.run(hold_lease(path, ttl_ms))
        case ["write-on", path]:
            asyncio.run(write_on(path))
        case ["watch", path]:
            asyncio.run(watch(path))
        case ["hold-lock", path]:
            hold_lock(path)
        case other:
            sys.exit(f"no such work: {other}")
