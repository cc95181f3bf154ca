"""Asking the pool what it has of a request, beside the scheduler's own thread.

The scheduler never waits on a socket for longer than it says: the calls are made by a thread here,
and an answer that is late is asked for again at the next scheduling step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from kvstore.client import Chain, Client, Hold, KVStoreError, Miss

from .usable import Window

T = TypeVar("T")

FRESH_SECONDS = 2.0  # after this an answer is asked for anew: blocks come and go
HOLD_MS = 20_000  # how long found blocks are kept for the worker; longer than an answer is used


@dataclass(frozen=True, slots=True)
class Found:
    """What the pool has of a request's blocks."""

    chain_blocks: int
    windows: tuple[Window, ...]
    miss: Miss | None
    hold: Hold | None


class Lookup:
    """One question about one request, and its answer once there is one."""

    def __init__(self, future: Future[Found]) -> None:
        self._future = future
        self._asked = time.monotonic()

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._asked < FRESH_SECONDS

    def result(self, seconds: float) -> Found | None:
        """The answer, or None if it is not there within `seconds`."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return None

    def drop(self) -> None:
        """Nobody needs the answer any more; what it holds is let go."""
        self._future.add_done_callback(_release)


class Lookups:
    """Asks for one engine, in one thread, so that a slow node delays answers and nothing else."""

    def __init__(self, clients: tuple[Client, ...], windows: tuple[int, ...]) -> None:
        self._clients, self._windows = clients, windows
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-lookup")

    def ask(self, chains: tuple[Chain, ...]) -> Lookup:
        return Lookup(self._thread.submit(self._find, chains))

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Make some other call of this side's, after those that were asked before."""
        return self._thread.submit(call)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _find(self, chains: tuple[Chain, ...]) -> Found:
        blocks, miss, hold = len(chains[0]), None, None
        windows: list[Window] = []
        for client, window, chain in zip(self._clients, self._windows, chains, strict=True):
            if not len(chain) or miss is Miss.UNREACHABLE:
                continue
            if window:
                present = client.exists_each(chain)
                windows.append(Window.of(window, present))
                continue
            try:
                hold = client.hold(chain, pin_ms=HOLD_MS)
                blocks, miss = min(blocks, hold.blocks), hold.miss
            except KVStoreError:
                blocks, miss = 0, Miss.UNREACHABLE
        return Found(blocks, tuple(windows), miss, hold)


def _release(future: Future[Found]) -> None:
    if not future.cancelled() and future.exception() is None:
        hold = future.result().hold
        if hold is not None:
            hold.release()
