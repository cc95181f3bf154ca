"""What a node says of itself when a session begins, where that is of no use."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from kvstore.client import connection
from kvstore.client.connection import Connection, Link
from kvstore.errors import Unavailable
from kvstore.rpc.locator import FixedAddress
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc

SECONDS = 10.0


class Teller(kv_pb2_grpc.KVServicer):
    """A node that begins sessions, and says that it moves bytes wherever a test wants."""

    def __init__(self) -> None:
        self.data_address = ""
        self.begun, self.hung_up = threading.Event(), threading.Event()

    def Session(self, request: Any, context: Any) -> Iterator[pb.SessionEvent]:
        self.begun.set()
        context.add_callback(self.hung_up.set)
        opened = pb.SessionEvent.Opened(session=b"s" * 16, data_address=self.data_address)
        yield pb.SessionEvent(opened=opened)
        self.hung_up.wait(SECONDS)


@pytest.fixture
def teller() -> Iterator[tuple[Teller, str]]:
    with ThreadPoolExecutor(2) as threads:
        server, node = grpc.server(threads), Teller()
        kv_pb2_grpc.add_KVServicer_to_server(node, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield node, f"127.0.0.1:{port}"
        server.stop(0).wait(SECONDS)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "127.0.0.1",
        ":7000",
        *(f"127.0.0.1:{port}" for port in ("", "data", "-1", "0", "65536", "٧")),
        "a..b:7000",
    ],
)
def test_a_node_that_names_no_place_for_data_is_unavailable_and_the_session_ends(
    teller: tuple[Teller, str], said: str
) -> None:
    node, address = teller
    node.data_address = said
    connection = Connection(FixedAddress(address), "test", SECONDS, transport="tcp")
    with pytest.raises(Unavailable, match=re.escape(said) or "''"):
        connection.link()
    assert node.hung_up.wait(SECONDS)
    with pytest.raises(Unavailable, match="left alone"):
        connection.link()
    connection.close()


def test_whatever_goes_wrong_while_a_session_begins_ends_it(
    teller: tuple[Teller, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    node, address = teller
    monkeypatch.setattr(Link, "_attached", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Connection(FixedAddress(address), "test", SECONDS).link()
    assert node.hung_up.wait(SECONDS)


def refused(threads: Callable[[threading.Thread], bool]) -> Callable[[threading.Thread], None]:
    """As where the system has none left, for some of those that are started."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if threads(thread):
            raise RuntimeError("can't start new thread")
        start(thread)

    return started


def runs(thread: threading.Thread, what: str) -> bool:
    target: Any = vars(thread)["_target"]
    return what in (target.__qualname__, target.__module__)


def test_where_no_thread_can_be_had_no_session_is_begun_and_the_node_is_left_alone(
    teller: tuple[Teller, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, address = teller
    connection = Connection(FixedAddress(address), "test", SECONDS)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused(lambda _: True))
        with pytest.raises(Unavailable, match=f"no thread can be had for a stream to {address}"):
            connection.link()
        with pytest.raises(Unavailable, match="left alone"):
            connection.link()
    connection.close()
    assert not node.begun.is_set()


def test_where_the_last_thread_is_gone_before_one_reads_the_session_it_is_ended(
    teller: tuple[Teller, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, address = teller
    connection = Connection(FixedAddress(address), "test", SECONDS)
    with monkeypatch.context() as patched:
        ours = refused(lambda one: runs(one, "Link._listen") and node.begun.wait(SECONDS))
        patched.setattr(threading.Thread, "start", ours)
        with pytest.raises(Unavailable, match="no thread can be had"):
            connection.link()
    connection.close()
    assert node.hung_up.wait(SECONDS)


def test_who_is_interrupted_while_a_session_begins_keeps_no_way_to_its_node(
    teller: tuple[Teller, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that maps the node's memory and stays keeps what is written there from being freed."""

    class Way:
        name, closed = "shm", False

        def close(self) -> None:
            self.closed = True

        def give_back(self) -> None:
            pass

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    way = Way()
    monkeypatch.setattr(Link, "_attached", lambda *_: way)
    monkeypatch.setattr(connection, "SocketCalls", interrupted)
    node, address = teller
    with pytest.raises(KeyboardInterrupt):
        Link(address, "interrupted", SECONDS)
    assert way.closed and node.hung_up.wait(SECONDS)


class Gone:
    """Finds no node, and counts who asks."""

    asked = 0

    def find(self) -> str:
        self.asked += 1
        raise Unavailable("no node serves")


def test_clients_that_lost_a_node_together_do_not_come_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else all of a pool's engines begin their sessions in the one instant that it is well."""
    now, gone = 0.0, Gone()
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now))
    clients = [Connection(gone, "test") for _ in range(100)]

    def all_ask() -> int:
        gone.asked = 0
        for one in clients:
            with pytest.raises(Unavailable):
                one.link()
        return gone.asked

    assert all_ask() == 100 and all_ask() == 0
    now = 0.75 * connection.PAUSE_SECONDS_MIN
    early = all_ask()
    now = connection.PAUSE_SECONDS_MIN
    assert 20 < early < 80 and early + all_ask() == 100
