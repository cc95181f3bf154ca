"""Threads for a stream are there before it is begun, or it is not begun."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from kvstore.errors import Unavailable
from kvstore.rpc.threads import begin_thread, threads_for


def test_those_that_were_looked_for_are_over_once_the_stream_begins() -> None:
    before = set(threading.enumerate())
    with threads_for("here"):
        assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("left", [0, 1, 2])
def test_where_a_stream_would_take_the_last_it_is_not_begun_and_none_stays(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, before, asked = threading.Thread.start, set(threading.enumerate()), count()

    def few(thread: threading.Thread) -> None:
        if next(asked) >= left:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    begun = False
    with pytest.raises(Unavailable, match="a stream to here: can't start"), threads_for("here"):
        begun = True
    assert not begun
    assert set(threading.enumerate()) <= before


def test_a_thread_that_cannot_be_had_is_unavailable_and_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = threading.Event()
    begin_thread(ran.set, "one", "here")
    assert ran.wait(10.0)

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(Unavailable, match="a call to here: can't start"):
        begin_thread(lambda: pytest.fail("it was begun"), "one", "here")
