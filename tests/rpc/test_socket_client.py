"""What callers of sockets hear when others end them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.client.call_sockets import on_this_host
from kvstore.errors import SessionEnded, Unavailable
from kvstore.limits import SOCKET_CALLS_MAX
from kvstore.rpc import socket_client
from kvstore.rpc.socket_client import Show, SocketCalls, Stub
from kvstore.rpc.socket_frames import ANSWER, METHODS, OK
from kvstore.wire.v1 import kv_pb2 as pb


def test_a_socket_that_is_closed_while_it_is_taken_is_none_to_call_on() -> None:
    calls, (here, there) = (
        SocketCalls(on_this_host("nowhere", b"token"), "here"),
        socket.socketpair(),
    )
    number = [name for name, _, _ in METHODS].index("Close")
    calls.post(here, number, pb.CloseRequest(), 5.0)
    here.close()
    assert calls.take(5.0) is None
    there.close()


def test_an_answer_that_is_no_message_is_its_nodes_failure_and_the_socket_is_of_no_use_more() -> (
    None
):
    calls, (here, there) = (
        SocketCalls(on_this_host("nowhere", b"token"), "a:1"),
        socket.socketpair(),
    )
    number = [name for name, _, _ in METHODS].index("Match")
    no_message = b"\xff\xff\xff"
    with there:
        there.sendall(ANSWER.pack(len(no_message), OK, 0, 0) + no_message)
        with pytest.raises(Unavailable, match="what node a:1 answered cannot be read"):
            calls.call(here, number, pb.MatchRequest(), 5.0)
        assert here.fileno() == -1 and not calls._free


def test_sockets_of_calls_that_were_interrupted_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may yet be answered there, so none is called on again; and no more than a few may be."""
    there: list[socket.socket] = []

    def connect(seconds: float, show: Show) -> socket.socket:
        here, other = socket.socketpair()
        there.append(other)
        return here

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    calls, number = SocketCalls(connect, "a:1"), [name for name, _, _ in METHODS].index("Match")
    monkeypatch.setattr(socket_client, "received", interrupted)
    for _ in range(SOCKET_CALLS_MAX):
        made = calls.take(5.0)
        assert made is not None
        with pytest.raises(KeyboardInterrupt):
            calls.call(made, number, pb.MatchRequest(), 5.0)
        assert made.fileno() == -1
    assert calls.take(5.0) is not None
    calls.close()
    for one in there:
        one.close()


class Dripping:
    """A socket whose peer sends a few bytes every 4 seconds of a clock of its own."""

    def __init__(self, says: bytes, at_once: int = 1, sending_seconds: float = 0.0) -> None:
        self.now, self._left, self._seconds, self.closed = 0.0, says, 0.0, False
        self._at_once, self._sending_seconds = at_once, sending_seconds

    def settimeout(self, seconds: float) -> None:
        self._seconds = seconds

    def sendall(self, message: bytes) -> None:
        self.now += self._sending_seconds

    def recv(self, size: int) -> bytes:
        self.now += min(4.0, self._seconds)
        if self._seconds < 4.0:
            raise TimeoutError
        few = min(size, self._at_once)
        came, self._left = self._left[:few], self._left[few:]
        return came

    def recv_into(self, room: memoryview) -> int:
        came = self.recv(len(room))
        room[: len(came)] = came
        return len(came)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("at_once", "sending_seconds"),
    [(1, 0.0), (ANSWER.size, 0.0), (1_000, 4.0)],
    ids=["by drops", "head before body", "to what was long to send"],
)
def test_an_answer_that_comes_by_and_by_moves_no_deadline(
    monkeypatch: pytest.MonkeyPatch, at_once: int, sending_seconds: float
) -> None:
    reply = pb.MatchReply(blocks=1).SerializeToString()
    says = ANSWER.pack(len(reply), OK, 0, 0) + reply
    made: Any = Dripping(says, at_once, sending_seconds)
    monkeypatch.setattr(socket_client.time, "monotonic", lambda: made.now)
    calls = SocketCalls(on_this_host("nowhere", b"token"), "a:1")
    number = [name for name, _, _ in METHODS].index("Match")
    with pytest.raises(Unavailable, match="a:1 did not answer within the deadline"):
        calls.call(made, number, pb.MatchRequest(), 5.0)
    assert made.closed and made.now == 5.0


class Noted:
    """Another way to make any call, that notes how long each of them may take."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, request: Any, timeout: float) -> None:
        self.seconds.append(timeout)

    def future(self, request: Any, timeout: float) -> Any:
        self.seconds.append(timeout)
        return self


@pytest.mark.parametrize(("seconds", "left"), [(10.0, 2.0), (3.0, 0.0)])
def test_what_waiting_for_a_socket_took_is_not_had_again_over_grpc(
    monkeypatch: pytest.MonkeyPatch, seconds: float, left: float
) -> None:
    """One that owes an answer is hung up on after eight seconds, or says nothing until the end."""
    number = [name for name, _, _ in METHODS].index("Close")
    for way in ("call", "begin"):
        made, other = Dripping(b""), Noted()
        monkeypatch.setattr(socket_client.time, "monotonic", lambda made=made: made.now)
        calls = SocketCalls(on_this_host("nowhere", b"token"), "a:1")
        calls.post(made, number, pb.CloseRequest(), 5.0)  # type: ignore[arg-type]
        stub = Stub(other, calls)
        if way == "call":
            stub.Match(pb.MatchRequest(), timeout=seconds)
        else:
            stub.begin("Match", pb.MatchRequest(), seconds)
        assert other.seconds == [pytest.approx(left, abs=0.01)]


def test_a_posted_close_does_not_wait_for_a_node_that_owes_the_answer_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor for a socket anew, where none is free: it goes over gRPC, and nobody hears of it."""

    def connect(seconds: float, show: Show) -> socket.socket:
        raise AssertionError("no socket is made for what nobody waits for")

    class Posted(Noted):
        def add_done_callback(self, _: object) -> None:
            pass

    calls, made, other = SocketCalls(connect, "a:1"), Dripping(b""), Posted()
    monkeypatch.setattr(socket_client.time, "monotonic", lambda: made.now)
    calls._free.append(made)  # type: ignore[arg-type]
    stub = Stub(other, calls)
    for _ in range(3):
        stub.post_close(pb.CloseRequest(), 5.0)
    assert other.seconds == [5.0, 5.0]
    assert made.closed and made.now <= 0.1 + 1e-6


def test_a_call_under_way_on_sockets_that_are_closed_ends_as_its_session_does() -> None:
    calls, (here, there) = (
        SocketCalls(on_this_host("nowhere", b"token"), "a:1"),
        socket.socketpair(),
    )
    calls._open.add(here)
    number = [name for name, _, _ in METHODS].index("Match")
    with there, ThreadPoolExecutor(1) as other:
        under_way = other.submit(calls.call, here, number, pb.MatchRequest(), 60.0)
        assert there.recv(1)
        calls.close()
        with pytest.raises(SessionEnded, match="while a call was under way"):
            under_way.result(30)
