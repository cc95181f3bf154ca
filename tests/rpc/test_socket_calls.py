"""Calls on a socket: what gRPC would answer, to who showed a token, within the same bounds."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kvstore.client.call_sockets import on_this_host
from kvstore.config import TlsConfig
from kvstore.errors import Invalid, Overloaded, SessionEnded, Unavailable
from kvstore.limits import RPC_KEYS_MAX, RPC_MESSAGE_BYTES_MAX, SOCKET_CALL_BYTES, SOCKET_CALLS_MAX
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.socket_client import SocketCalls, Stub
from kvstore.rpc.socket_frames import CALL, METHODS
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import eventually
from tests.rpc.call_servers import SECONDS, TOKEN, AtDataPort, OnThisHost, Server

NUMBER = {name: number for number, (name, _, _) in enumerate(METHODS)}


class Method:
    def __init__(self, other: Other, name: str) -> None:
        self._other, self._name = other, name

    def __call__(self, request: Any, timeout: float) -> str:
        self._other.asked.append(self._name)
        return self._name

    def future(self, request: Any, timeout: float) -> Future[str]:
        found: Future[str] = Future()
        found.set_result(self(request, timeout))
        return found


class Other:
    """In the place of gRPC's stub: notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


def shown_to_nobody(_: socket.socket) -> None:
    pass


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    hosts = ("127.0.0.1",)
    authority = Authority.make(tmp_path_factory.mktemp("authority"), datetime.timedelta(days=1))
    return authority.sign(Holder(Role.NODE, "a", hosts), datetime.timedelta(days=1))


@pytest.fixture
def unix(tmp_path: Path) -> Iterator[OnThisHost]:
    made = OnThisHost(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture(params=["unix", "tcp", "tls"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, tls: TlsConfig
) -> Iterator[OnThisHost | AtDataPort]:
    made = (
        OnThisHost(tmp_path / "s")
        if request.param == "unix"
        else AtDataPort(tls if request.param == "tls" else None)
    )
    yield made
    made.close()


@pytest.fixture
def calls(server: Server) -> Iterator[SocketCalls]:
    made = SocketCalls(server.connect, "here")
    yield made
    made.close()


@pytest.fixture
def other() -> Other:
    return Other()


@pytest.fixture
def stub(calls: SocketCalls, other: Other) -> Stub:
    return Stub(other, calls)


def match(*hashes: bytes) -> pb.MatchRequest:
    return pb.MatchRequest(hashes=hashes)


def test_a_call_is_answered_as_over_grpc(stub: Stub, other: Other, server: Server) -> None:
    assert stub.Match(match(b"a", b"b"), timeout=SECONDS) == pb.MatchReply(blocks=2)
    assert stub.Match(match(), timeout=SECONDS) == pb.MatchReply()
    assert not other.asked
    assert server.connections == 1, "a socket serves one call after the other"


def test_it_has_the_callers_time(stub: Stub, server: Server) -> None:
    stub.Match(match(b"a"), timeout=SECONDS)
    assert SECONDS - 5 < server.service.left <= SECONDS


@pytest.mark.parametrize("size", [1, SOCKET_CALL_BYTES, SOCKET_CALL_BYTES + 1, 1_000_000])
def test_a_message_of_any_size_arrives_whole(stub: Stub, size: int) -> None:
    data = os.urandom(size)
    for _ in range(3):
        assert stub.Open(pb.OpenRequest(hashes=[data]), timeout=SECONDS).handles == [data]


def test_a_refusal_keeps_its_class_its_words_and_when_to_come_again(stub: Stub) -> None:
    with pytest.raises(Overloaded, match="no room") as caught:
        stub.Match(match(b"refuse"), timeout=SECONDS)
    assert caught.value.retry_after_ms == 77
    assert stub.Match(match(b"a"), timeout=SECONDS).blocks == 1, "and the socket is of use still"


@pytest.mark.parametrize("size", [1, 10 * SOCKET_CALL_BYTES, 1_000_000])
def test_a_long_call_that_is_refused_at_the_door_leaves_the_socket_in_order(
    stub: Stub, server: Server, other: Other, size: int
) -> None:
    server.session_lives = False
    with pytest.raises(SessionEnded):
        stub.Open(pb.OpenRequest(hashes=[bytes(size)]), timeout=SECONDS)
    server.session_lives = True
    assert stub.Match(match(b"a"), timeout=SECONDS).blocks == 1
    assert server.connections == 1


def test_a_bug_says_nothing_of_itself(stub: Stub) -> None:
    with pytest.raises(Exception, match="its log says which") as caught:
        stub.Match(match(b"bug"), timeout=SECONDS)
    assert "must not see" not in str(caught.value)


def test_what_is_no_message_is_its_senders_mistake(calls: SocketCalls) -> None:
    made = calls.take(SECONDS)
    assert made is not None

    class Wrong:
        def SerializeToString(self) -> bytes:
            return b"\xff\xff\xff"

    with pytest.raises(Invalid, match="compare proto/"):
        calls.call(made, NUMBER["Match"], Wrong(), SECONDS)


def test_a_call_that_is_late_is_given_up_on_both_sides(stub: Stub, server: Server) -> None:
    stub.Match(match(b"a"), timeout=SECONDS)  # so that it is connected
    with pytest.raises(Unavailable, match="within the deadline"):
        stub.Match(match(b"wait"), timeout=1.0)
    eventually(lambda: server.service.cancelled == 1)
    assert stub.Match(match(b"a"), timeout=SECONDS).blocks == 1


def test_a_caller_that_hangs_up_ends_its_call(calls: SocketCalls, server: Server) -> None:
    made = calls.take(SECONDS)
    assert made is not None
    calls.post(made, NUMBER["Match"], match(b"wait"), SECONDS)
    eventually(lambda: server.service.begun == 1)
    calls.close()
    eventually(lambda: server.service.cancelled == 1)


def test_who_calls_again_before_the_answer_is_hung_up_on(server: Server) -> None:
    with server.connect(SECONDS, shown_to_nobody) as peer:
        message = match(b"wait").SerializeToString()
        peer.sendall(CALL.pack(len(message), NUMBER["Match"], 0, 20_000) + message)
        eventually(lambda: server.service.begun == 1)
        peer.sendall(b"more")
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
    eventually(lambda: server.service.cancelled == 1)


def test_calls_that_were_begun_are_answered_whenever_they_are_asked(
    stub: Stub, other: Other, server: Server
) -> None:
    begun = [stub.begin("Match", match(*([b"a"] * n)), SECONDS) for n in range(SOCKET_CALLS_MAX)]
    beyond = stub.begin("Match", match(b"a"), SECONDS)
    assert [wait().blocks for wait in reversed(begun)] == [2, 1, 0]
    assert beyond() == "Match" and other.asked == ["Match"], "which went over gRPC"
    assert stub.Match(match(b"a"), timeout=SECONDS).blocks == 1
    assert server.connections == SOCKET_CALLS_MAX


def test_a_call_that_was_begun_is_refused_when_it_is_asked(stub: Stub) -> None:
    wait = stub.begin("Match", match(b"refuse"), SECONDS)
    with pytest.raises(Overloaded, match="no room"):
        wait()
    assert stub.Match(match(b"a"), timeout=SECONDS).blocks == 1


def test_calls_beyond_the_sockets_go_over_grpc(
    stub: Stub, calls: SocketCalls, other: Other, server: Server
) -> None:
    taken = [calls.take(SECONDS) for _ in range(SOCKET_CALLS_MAX)]
    assert all(taken)
    assert stub.Match(match(b"a"), timeout=SECONDS) == "Match"
    assert stub.Remove(pb.RemoveRequest(), timeout=SECONDS) == "Remove", "which sockets never carry"
    assert other.asked == ["Match", "Remove"]


def test_where_there_is_no_socket_everything_goes_over_grpc(tmp_path: Path, other: Other) -> None:
    calls = SocketCalls(on_this_host(os.fspath(tmp_path / "none"), TOKEN), "here")
    stub = Stub(other, calls)
    assert [stub.Match(match(), timeout=SECONDS) for _ in range(3)] == ["Match"] * 3
    calls.close()


def test_who_shows_no_token_is_not_answered(unix: OnThisHost, other: Other) -> None:
    calls = SocketCalls(on_this_host(os.fspath(unix.path), b"x" * 16), "here")
    assert Stub(other, calls).Match(match(), timeout=SECONDS) == "Match"
    calls.close()


def test_a_session_that_is_over_can_call_no_more(stub: Stub, server: Server) -> None:
    stub.Match(match(b"a"), timeout=SECONDS)
    server.session_lives = False
    with pytest.raises(SessionEnded, match="is over"):
        stub.Match(match(b"a"), timeout=SECONDS)


def test_a_close_that_nobody_waits_for_is_done_before_the_next_call(
    stub: Stub, server: Server
) -> None:
    stub.Match(match(b"a"), timeout=SECONDS)  # by a socket, as what is to be closed was opened
    for number in range(20):
        stub.post_close(pb.CloseRequest(handles=[b"%d" % number]), timeout=SECONDS)
        stub.Match(match(b"a"), timeout=SECONDS)
        assert len(server.service.closed) == number + 1


def test_a_server_that_dies_while_it_is_asked_is_unavailable(
    calls: SocketCalls, server: Server
) -> None:
    made = calls.take(SECONDS)
    assert made is not None

    def die() -> None:
        eventually(lambda: server.service.begun == 1)
        server.loop.call_soon_threadsafe(
            lambda: [task.cancel() for task in asyncio.all_tasks(server.loop)]
        )

    thread = threading.Thread(target=die)
    thread.start()
    server.admission.take_turn = _hanging_up(server.admission.take_turn)  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        calls.call(made, NUMBER["Match"], match(b"wait"), 2.0)
    thread.join()


def _hanging_up(take_turn: Any) -> Any:
    """`take_turn` whose caller is hung up on as soon as it has its turn and its method began."""

    async def take(who: str, task: asyncio.Task[None], hang_up: Callable[[], None]) -> None:
        await take_turn(who, task, hang_up)
        asyncio.get_running_loop().call_later(0.1, hang_up)

    return take


def test_calls_wait_for_their_turn_like_any_other(server: Server, stub: Stub) -> None:
    """Whatever comes first, a turn that is taken is given back."""
    for _ in range(3):
        with pytest.raises(Unavailable):
            stub.Match(match(b"wait"), timeout=0.05)
    for _ in range(50):
        stub.Match(match(b"a"), timeout=SECONDS)
    places = server.admission._turns.places
    eventually(lambda: places.free == places.total)


def test_a_call_that_names_many_blocks_counts_as_many_calls(server: Server, stub: Stub) -> None:
    big = match(*[b"a"] * RPC_KEYS_MAX)
    assert stub.Match(big, timeout=SECONDS).blocks == RPC_KEYS_MAX
    with pytest.raises(Overloaded, match="calls a second"):
        for _ in range(100):
            server.loop.call_soon_threadsafe(server.admission.count, "another tenant", "/any")
            stub.Match(big, timeout=SECONDS)
    closed = pb.CloseRequest(handles=[b"a"] * RPC_KEYS_MAX)
    assert stub.Close(closed, timeout=SECONDS) == pb.CloseReply(), "a hold ends all the same"


@pytest.mark.parametrize(
    "head",
    [
        CALL.pack(RPC_MESSAGE_BYTES_MAX + 1, 0, 0, 1_000),
        CALL.pack(0, len(METHODS), 0, 1_000),
        CALL.pack(0, 0, 0, 1_000) + b"more than it said",
        b"\x9a\x3c" + b"\xff" * 64,
    ],
)
def test_what_is_no_call_is_hung_up_on(server: Server, head: bytes) -> None:
    with server.connect(SECONDS, shown_to_nobody) as peer:
        peer.sendall(head)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_a_message_is_not_received_before_its_turn(unix: OnThisHost) -> None:
    """Of a long one no more than a small buffer is taken from its sender while others have all
    turns."""
    loop, admission = unix.loop, unix.admission

    async def fill() -> list[asyncio.Task[None]]:
        async def hold(who: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            await admission.take_turn(who, task, task.cancel)
            await asyncio.sleep(2 * SECONDS)

        made = [
            asyncio.create_task(hold(f"tenant {i}")) for i in range(admission._turns.places.total)
        ]
        await asyncio.sleep(0)
        return made

    tasks = asyncio.run_coroutine_threadsafe(fill(), loop).result(SECONDS)
    size = RPC_MESSAGE_BYTES_MAX
    with unix.connect(SECONDS, shown_to_nobody) as peer:
        peer.setblocking(False)
        left = memoryview(CALL.pack(size, NUMBER["Open"], 0, 20_000) + bytes(size))
        quiet = time.monotonic()
        while time.monotonic() - quiet < 0.5:
            try:
                left = left[peer.send(left) :]
                quiet = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        assert len(left) > size // 2, "the kernel's buffers hold the rest"
        for task in tasks:
            loop.call_soon_threadsafe(task.cancel)
        peer.setblocking(True)
        peer.settimeout(SECONDS)
        peer.sendall(left)
        assert peer.recv(1), "and now it is answered"


def test_whoever_waits_to_be_let_in_is_free_once_the_calls_are_closed(
    server: Server, other: Other
) -> None:
    server.freeze()
    calls, answers = SocketCalls(server.connect, "here"), list[object]()
    stub = Stub(other, calls)
    thread = threading.Thread(target=lambda: answers.append(stub.Match(match(), timeout=SECONDS)))
    began = time.monotonic()
    thread.start()
    eventually(lambda: any(calls._coming.values()))
    calls.close()
    thread.join(SECONDS)
    assert answers == ["Match"], "what gRPC says of it"
    assert time.monotonic() - began < SECONDS / 2
    server.thaw()


def test_several_threads_may_call_at_once(stub: Stub, other: Other) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(50):
            data = b"%d" % number
            found = stub.Open(pb.OpenRequest(hashes=[data]), timeout=SECONDS)
            if found != "Open" and found.handles != [data]:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not wrong
