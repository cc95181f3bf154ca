"""Threads for a disk's calls are there before anything is asked of them, or none of them is."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import pytest

from kvstore.errors import ConfigError
from kvstore.node.threads import DEPTH, Threads, crew

SECONDS = 10.0


def none(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_is_asked_later_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stand in the pool's line all the same, and be done once its caller has given up."""
    threads, meeting = Threads(), threading.Barrier(2 * DEPTH)
    monkeypatch.setattr(threading.Thread, "start", none)

    async def story() -> None:
        asked = [
            call(meeting.wait, SECONDS)
            for call in (threads.read, threads.write)
            for _ in range(DEPTH)
        ]
        assert sorted(await asyncio.gather(*asked)) == [*range(2 * DEPTH)], "all at once"

    asyncio.run(story())
    threads.shutdown()


def test_where_not_all_can_be_had_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    start, before, begun = threading.Thread.start, set(threading.enumerate()), count()

    def two(thread: threading.Thread) -> None:
        (start if next(begun) < 2 else none)(thread)

    monkeypatch.setattr(threading.Thread, "start", two)
    with pytest.raises(ConfigError, match=r"4 threads .*can't start new thread"):
        crew("tests", 4)
    assert set(threading.enumerate()) <= before


def test_threads_end_in_a_bounded_time_also_where_a_disk_does_not_answer() -> None:
    threads, called, answer = Threads(), threading.Event(), threading.Event()

    def hung() -> None:
        called.set()
        answer.wait(SECONDS)

    async def story() -> None:
        asked = asyncio.create_task(threads.write(hung))
        assert await asyncio.to_thread(called.wait, SECONDS)
        assert not threads.shutdown(0.01)
        assert not answer.is_set()
        answer.set()
        await asked

    asyncio.run(story())


def test_threads_that_nothing_holds_up_have_all_ended() -> None:
    before = set(threading.enumerate())
    assert Threads().shutdown(SECONDS)
    assert set(threading.enumerate()) <= before
