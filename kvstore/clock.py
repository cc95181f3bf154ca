"""Time as Moonpool sees it: seconds that only move forward, so no wall clock jump can end a lease.

Everything that measures a duration takes a `Clock`. `SystemClock` is the kernel's monotonic clock,
which all processes of one Linux host share; `SimClock` moves only when a test says so, which makes
a test of time exact and free of waiting.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol

SETTLE_TURNS = 10  # turns of the event loop a woken sleeper gets before simulated time moves on


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds. Only differences mean anything. Safe to call from any thread."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `now()` has grown by at least `seconds`; zero or less still yields."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC, the one clock that all processes of a host agree on."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class SimClock:
    """A clock that a test moves. `now()` may be read from any thread; the rest from one loop."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()  # sleepers due at the same time wake as they came
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        alarm = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), alarm))
        await alarm

    async def advance(self, seconds: float) -> None:
        """Move time by `seconds`, stopping at every sleeper's due time to let it run.

        A loop that sleeps one second therefore turns three times in `advance(3)`.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        end = self._now + seconds
        await self._settle()  # tasks just created get to call sleep() first
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, alarm = heapq.heappop(self._sleepers)
            if alarm.done():  # its task was cancelled
                continue
            self._now = due
            alarm.set_result(None)
            await self._settle()
        self._now = end

    async def _settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
