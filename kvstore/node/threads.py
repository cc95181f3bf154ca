"""Threads for a disk's calls: readers never wait behind writers, nor the loop behind either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

G = TypeVar("G")
T = TypeVar("T")

DEPTH = 16  # reads, and writes, that the device has before it at once


class Threads:
    """A pool that reads and one that writes."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(DEPTH, "ssd-read")
        self._writers = ThreadPoolExecutor(DEPTH, "ssd-write")

    async def read(self, call: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *given)

    async def write(self, call: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, call, *given)

    def each(self, call: Callable[[G], T], items: Iterable[G]) -> Iterator[T]:
        """As `map`, side by side in the threads that read: for a start, before anybody waits."""
        return self._readers.map(call, items)

    def shutdown(self) -> None:
        self._readers.shutdown()
        self._writers.shutdown()
