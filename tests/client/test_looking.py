"""One thread of a client looks for its node; what the others have of it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.client import connection
from kvstore.client.connection import Connection
from kvstore.errors import SessionEnded, Unavailable

SECONDS = 20.0


class Begun:
    """A session, without a node."""

    def __init__(self, *_: Any) -> None:
        self.alive = True

    def close(self) -> None:
        self.alive = False


class Finds:
    """Says where the node is once it is let go on; or that it is nowhere."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Semaphore(0), threading.Event()
        self.count, self.gone = 0, False

    def find(self) -> str:
        self.count += 1
        self.asked.release()
        assert self.goes_on.wait(SECONDS)
        if self.gone:
            raise Unavailable("no node serves")
        return "127.0.0.1:1"


@pytest.fixture
def finds() -> Finds:
    return Finds()


@pytest.fixture
def looking(finds: Finds, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Its pauses are over at once."""
    monkeypatch.setattr(connection, "Link", Begun)
    monkeypatch.setattr(connection, "PAUSE_SECONDS_MIN", 0.0)
    made = Connection(finds, "test")
    yield made
    finds.goes_on.set()
    made.close()


@pytest.fixture
def beside() -> Iterator[Callable[..., Any]]:
    """Begins calls in threads of their own."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


def fails_once(looking: Connection, finds: Finds) -> None:
    finds.gone = True
    finds.goes_on.set()
    with pytest.raises(Unavailable, match="no node serves"):
        looking.link()
    assert finds.asked.acquire(timeout=SECONDS)
    finds.goes_on.clear()
    finds.gone = False


def test_while_it_looks_whether_a_node_that_failed_is_back_nobody_else_stands_still(
    looking: Connection, finds: Finds, beside: Callable[..., Any]
) -> None:
    fails_once(looking, finds)
    first = beside(looking.link)
    assert finds.asked.acquire(timeout=SECONDS)
    other = beside(looking.link)
    with pytest.raises(Unavailable, match="another thread looks"):
        other.result(SECONDS / 2)
    assert not first.done()
    finds.goes_on.set()
    assert first.result(SECONDS) is looking.link()
    assert finds.count == 2


def test_where_nothing_failed_all_wait_for_the_one_session(
    looking: Connection, finds: Finds, beside: Callable[..., Any]
) -> None:
    found = [beside(looking.link) for _ in range(4)]
    assert finds.asked.acquire(timeout=SECONDS)
    finds.goes_on.set()
    assert len({one.result(SECONDS) for one in found}) == finds.count == 1


def test_who_closes_it_waits_for_no_look_and_what_that_finds_is_closed(
    looking: Connection, finds: Finds, beside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Begun] = []
    monkeypatch.setattr(connection, "Link", lambda *_: begun.append(Begun()) or begun[-1])
    first = beside(looking.link)
    assert finds.asked.acquire(timeout=SECONDS)
    beside(looking.close).result(SECONDS / 2)
    with pytest.raises(SessionEnded, match="the client is closed"):
        looking.link()
    finds.goes_on.set()
    with pytest.raises(SessionEnded, match="the client is closed"):
        first.result(SECONDS)
    assert [one.alive for one in begun] == [False]
