"""Simulated time moves only when told, and wakes sleepers in the order they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kvstore.clock import Clock, SimClock, SystemClock


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10))


def test_sleepers_wake_in_order_at_their_due_times() -> None:
    async def scenario() -> None:
        clock = SimClock(start=100.0)
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((name, clock.now()))

        sleeps = [("late", 3), ("early", 1), ("as late", 3), ("never", 10)]
        tasks = [asyncio.create_task(sleeper(name, seconds)) for name, seconds in sleeps]
        await clock.advance(5)
        assert woken == [("early", 101), ("late", 103), ("as late", 103)]
        assert clock.now() == 105
        tasks[-1].cancel()

    run(scenario())


def test_a_loop_that_sleeps_turns_once_for_each_of_its_periods() -> None:
    async def scenario() -> None:
        clock = SimClock()
        turns: list[float] = []

        async def loop() -> None:
            while True:
                await clock.sleep(1)
                turns.append(clock.now())

        task = asyncio.create_task(loop())
        await clock.advance(3.5)
        assert turns == [1, 2, 3]
        await clock.advance(0.5)
        assert turns == [1, 2, 3, 4]
        task.cancel()

    run(scenario())


def test_a_cancelled_sleeper_is_passed_over() -> None:
    async def scenario() -> None:
        clock = SimClock()
        cancelled = asyncio.create_task(clock.sleep(1))
        other = asyncio.create_task(clock.sleep(2))
        await clock.advance(0)
        cancelled.cancel()
        await clock.advance(2)
        assert cancelled.cancelled()
        assert other.done() and clock.now() == 2

    run(scenario())


@pytest.mark.parametrize("clock", [SimClock(), SystemClock()])
def test_no_time_at_all_is_slept_at_once(clock: Clock) -> None:
    async def scenario() -> None:
        await clock.sleep(0)
        await clock.sleep(-1)

    run(scenario())


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        run(SimClock().advance(-1))


def test_the_system_clock_moves_by_itself() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        start = clock.now()
        await clock.sleep(0.01)
        assert clock.now() - start >= 0.009

    run(scenario())
