"""What a process does by itself ends when it is told to, and not by a bug that nobody hears of."""

from __future__ import annotations

import asyncio

import pytest

from kvstore.clock import SimClock
from kvstore.rpc.kept import PAUSE_SECONDS, kept


def test_what_fails_is_logged_counted_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    begun, failures = 0, 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise RuntimeError(f"bug {begun}")
        await asyncio.Event().wait()

    def failed() -> None:
        nonlocal failures
        failures += 1

    async def story() -> None:
        clock = SimClock()
        task = asyncio.create_task(kept("counting", work, clock, failed))
        await clock.advance(0)
        assert (begun, failures) == (1, 1)
        await clock.advance(5 * PAUSE_SECONDS)
        assert (begun, failures) == (3, 2) and not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert "counting ended in a way that nobody foresaw" in caplog.text
    assert "bug 1" in caplog.text and "bug 2" in caplog.text


def test_what_has_no_more_to_do_is_not_begun_again() -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1

    asyncio.run(kept("once", work, SimClock()))
    assert begun == 1
