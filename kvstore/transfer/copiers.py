"""One large move, shared by a few threads of this process: a single core copies slower than memory
can be read and written.

Blocks are shared in runs of equal length, the first of which the caller's own thread moves. What no
other thread has begun by then it moves too, so a move never waits for threads that are busy with
somebody else's. Nothing is moving any more when a call returns or raises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

from kvstore.limits import COPY_SHARE_BYTES_MIN, COPY_THREADS_MAX

T = TypeVar("T")

COPY_THREADS = min(COPY_THREADS_MAX, len(os.sched_getaffinity(0)))  # where a caller names no number


class Copiers:
    """Threads of one transport, made when a move first pays for them."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: how many may move at once, the caller's own among them."""
        self._threads = COPY_THREADS if threads is None else threads
        self._making = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def each(self, count: int, size: int, move: Callable[[slice], T]) -> list[T]:
        """What `move` returns of runs of `count` blocks of `size` bytes in all, in their order.

        Raises what the first of them to fail does, once none is under way.
        """
        shares = max(1, min(self._threads, count, size // COPY_SHARE_BYTES_MIN))
        first, *others = _runs(count, shares)
        if not others:
            return [move(first)]
        begun: list[tuple[slice, Future[T] | None]] = []
        try:
            for run in others:
                begun.append((run, self._begun(move, run)))
            found = [move(first)]
            for run, other in begun:
                if other is None or other.cancel():
                    found.append(move(run))
                else:
                    found.append(other.result())
            return found
        finally:
            for _, other in begun:
                if other is not None and not other.cancel():
                    other.exception()  # wait for it: it writes to the caller's memory, or a slot

    def close(self) -> None:
        """End the threads; for when nothing is moving."""
        with self._making:
            if self._pool is not None:
                self._pool.shutdown()

    def _begun(self, move: Callable[[slice], T], run: slice) -> Future[T] | None:
        """None where no thread can be had for it: then it is never begun."""
        pool = self._ready()
        try:
            return pool.submit(move, run)
        except RuntimeError:
            # It stands in the pool's line all the same, and would be moved by a later thread.
            with self._making:
                self._pool = None if self._pool is pool else self._pool
            pool.shutdown(cancel_futures=True)
            return None

    def _ready(self) -> ThreadPoolExecutor:
        with self._making:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads - 1, "moonpool-copy")
            return self._pool


def _runs(count: int, shares: int) -> list[slice]:
    """As near to equal as can be, in order."""
    ends = [count * i // shares for i in range(shares + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
