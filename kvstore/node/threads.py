"""Threads for a disk's calls: readers never wait behind writers, nor the loop behind either.

All of them are there from the start. Where one cannot be had later, what was to be done would stand
in the pool's line all the same, and be done, to slots, when its caller has long let go of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from kvstore.errors import ConfigError

G = TypeVar("G")
T = TypeVar("T")

DEPTH = 16  # reads, and writes, that the device has before it at once
HANG_SECONDS = 4.0  # that the disk may take, at the end, to return from what it was asked


class Threads:
    """A pool that reads and one that writes."""

    def __init__(self) -> None:
        self._readers = crew("ssd-read", DEPTH)
        self._writers = crew("ssd-write", DEPTH)

    async def read(self, call: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *given)

    async def write(self, call: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, call, *given)

    def each(self, call: Callable[[G], T], items: Iterable[G]) -> Iterator[T]:
        """As `map`, side by side in the threads that read: for a start, before anybody waits."""
        return self._readers.map(call, items)

    def shutdown(self, seconds: float = HANG_SECONDS) -> bool:
        """End all of them; False where one has not come back from its disk in that time. What still
        waits in the line then is never done."""
        all_here = threading.Barrier(2 * DEPTH + 1)
        for pool in (self._readers, self._writers):
            for _ in range(DEPTH):
                pool.submit(all_here.wait)
        with suppress(threading.BrokenBarrierError):
            all_here.wait(seconds)
        idle = not all_here.broken
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=idle, cancel_futures=True)
        return idle


def crew(name: str, count: int) -> ThreadPoolExecutor:
    """A pool of threads that have all begun; or `ConfigError`, and none stays."""
    pool, all_here = ThreadPoolExecutor(count, name), threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(all_here.wait)  # nobody is idle before all are here: so each has its own
    except RuntimeError as error:
        all_here.abort()
        pool.shutdown()
        raise ConfigError(
            f"{count} threads cannot be had ({error}): let the node have more, see ulimit -u and "
            "the pids limit of its container"
        ) from error
    all_here.wait()
    return pool
