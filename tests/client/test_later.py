"""A call is made once, or never where its caller was told so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.client.later import later

SECONDS = 20.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    made = ThreadPoolExecutor(2)
    yield made
    made.shutdown(wait=True)


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_a_call_gives_or_raises_is_its_future_s(threads: ThreadPoolExecutor) -> None:
    given, raised = later(threads, lambda: 7), later(threads, lambda: [][0])
    assert given is not None and given.result(SECONDS) == 7
    assert raised is not None and isinstance(raised.exception(SECONDS), IndexError)


def test_a_call_for_which_no_thread_could_be_started_is_not_made_by_another(
    threads: ThreadPoolExecutor, monkeypatch: Any
) -> None:
    made: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert later(threads, lambda: made.append("refused")) is None
    after = later(threads, lambda: made.append("after"))
    assert after is not None
    after.result(SECONDS)
    threads.shutdown(wait=True)
    assert made == ["after"]


def test_a_call_that_a_thread_took_meanwhile_is_made_and_said_to_be(
    threads: ThreadPoolExecutor, monkeypatch: Any
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    first = later(threads, lambda: go_on.wait(SECONDS))
    assert first is not None

    def taken_first(_: threading.Thread) -> None:
        go_on.set()  # the thread there is comes to what waits
        assert begun.wait(SECONDS)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", taken_first)
        second = later(threads, begun.set)
    assert second is not None and second.result(SECONDS) is None


def test_a_closed_executor_makes_none(threads: ThreadPoolExecutor) -> None:
    threads.shutdown()
    assert later(threads, int) is None
