"""What a tenant, or somebody who never says who it is, does to a node is not felt by the others.

It goes over raw sockets; the others are ordinary callers, whose every call has to be answered.
"""

from __future__ import annotations

import itertools
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.config import OPEN, Credentials
from kvstore.limits import (
    RPC_ARRIVALS_MAX,
    RPC_CONNECTION_CALLS_MAX,
    RPC_HANDSHAKE_SECONDS,
    RPC_KEYS_MAX,
    RPC_MESSAGE_BYTES_MAX,
)
from kvstore.rpc.channel import open_channel
from kvstore.rpc.identity import TENANT_KEY
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc
from tests.auth import h2
from tests.auth.people import People, caller_of, known_at
from tests.nodes import (
    SPEC,
    Caller,
    NodeProcess,
    Refusal,
    eventually,
    payload,
    prompt,
    short_directory,
)

numbers = itertools.count(3_000_000)
ROUNDS = 20
STREAMS = 10_000
CONNECTIONS = 1_000
RESETS = 500  # on one connection
KV = "/moonpool.v1.KV/"


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """As many open files as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def open_node() -> Iterator[NodeProcess]:
    """A node without TLS that knows two tenants."""
    with short_directory() as directory:
        home = directory / "node"
        home.mkdir()
        People(directory / "certs", home / "metadata.db")
        node = NodeProcess(home, dram="64MiB", slab="8MiB")
        try:
            yield node.start()
        finally:
            node.close()


def answered(caller: Caller, rounds: int = ROUNDS) -> None:
    """Everything that a caller does is done, and right."""
    for _ in range(rounds):
        blocks = prompt(next(numbers), 2)
        assert caller.put(blocks) == [pb.PutReply.STORED] * 2
        assert caller.match(blocks)[0] == 2
        assert caller.get(blocks)[1] == [payload(h) for h in blocks.hashes]


def others_are_served(begun: Callable[[], Caller], early: Caller) -> None:
    """Those who were there before the flood, and those who come during it."""
    answered(early)
    late = begun()
    late.register()
    answered(late, 5)
    late.close()


@pytest.fixture
def other(open_node: NodeProcess) -> Iterator[Caller]:
    """A caller of the tenant `default`, which floods nobody."""
    made = Caller(open_node.address)
    made.register()
    yield made
    made.close()


@contextmanager
def sockets(address: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(h2.connected(address)) for _ in range(count)]


def flooded(address: str, method: str, count: int) -> ExitStack:
    """So many calls of one tenant, begun and left without their message."""
    opened = ExitStack()
    for _ in range(-(-count // RPC_CONNECTION_CALLS_MAX)):
        peer = opened.enter_context(h2.connected(address))
        calls = (h2.call(i, KV + method, "team-a") for i in h2.streams(RPC_CONNECTION_CALLS_MAX))
        peer.sendall(h2.greeting() + b"".join(calls))
    return opened


@pytest.mark.parametrize("method", ["Match", "Session", "Put", "Get"])
def test_ten_thousand_streams_of_one_tenant_leave_places_for_another(
    method: str, open_node: NodeProcess, other: Caller
) -> None:
    with flooded(open_node.address, method, STREAMS):
        others_are_served(lambda: Caller(open_node.address), other)
    # None of the flood's. A node that stood still for so long that it was held for dead ended ours.
    eventually(lambda: other.stats().sessions <= 1, 60)


def test_the_flooding_tenant_is_told_when_to_come_again(
    open_node: NodeProcess, other: Caller
) -> None:
    channel = open_channel(open_node.address, OPEN)
    put = channel.stream_unary(KV + "Put")
    go = threading.Event()

    def nothing() -> Iterator[bytes]:
        go.wait(30)
        yield from ()

    calls = [put.future(nothing(), metadata=[(TENANT_KEY, "team-a")]) for _ in range(40)]
    refused = eventually(lambda: [one for one in calls if one.done()])
    found = refused[0].exception()
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(found.trailing_metadata())
    assert trailers["moonpool-error"] == "Overloaded"
    assert int(trailers["moonpool-retry-after-ms"]) > 0
    answered(other, 3)
    go.set()
    for one in calls:
        one.exception(timeout=30)
    channel.close()


def test_a_tenant_whose_calls_name_many_blocks_is_told_too(
    open_node: NodeProcess, other: Caller
) -> None:
    """Far fewer than a thousand calls a second: each is as dear as a hundred."""
    channel = open_channel(open_node.address, OPEN)
    match = kv_pb2_grpc.KVStub(channel).Match
    other.register()
    asked = pb.MatchRequest(namespace=SPEC.digest, hashes=[bytes(32)] * RPC_KEYS_MAX)
    refused: list[Refusal] = []
    for _ in range(200):
        assert other.match(prompt(next(numbers), 2))[0] == 0
        try:
            match(asked, metadata=[(TENANT_KEY, "team-a")], timeout=30)
        except grpc.RpcError as error:
            refused.append(Refusal(error))
            break
    assert [one.kind for one in refused] == ["Overloaded"]
    channel.close()


def test_a_tenant_that_is_told_so_still_gives_back_what_it_holds(
    people: People, tls_node: NodeProcess
) -> None:
    """Else it would stay held: nobody gives a window back twice."""
    ours, quiet = caller_of(tls_node, people, "team-a"), caller_of(tls_node, people, "team-b", True)
    blocks = prompt(next(numbers), 4)
    windows = list(ours.reserve(blocks).handles)
    asked = {**ours.about(blocks), "hashes": [bytes(32)] * RPC_KEYS_MAX}

    def told() -> bool:
        quiet.match(blocks)
        try:
            ours.ask("Match", **asked)
        except grpc.RpcError as error:
            return Refusal(error).kind == "Overloaded"
        return False

    assert quiet.stats().windows == 4
    eventually(told)
    ours.ask("Abort", handles=windows)
    assert quiet.stats().windows == 0
    ours.close()
    quiet.close()


def test_calls_that_are_reset_as_fast_as_they_begin_hold_up_nobody(
    open_node: NodeProcess, other: Caller
) -> None:
    failed = []
    rounds = RPC_ARRIVALS_MAX // 2 // (4 * RESETS)  # above that many gRPC drops anybody's

    def reset(number: int) -> None:
        for _ in range(rounds):
            try:
                with h2.connected(open_node.address) as peer:
                    peer.sendall(h2.greeting())
                    for i in h2.streams(RESETS):
                        peer.sendall(h2.call(i, KV + "Match", "team-a") + h2.reset(i))
            except OSError:
                time.sleep(0.01)  # it was hung up on, as it may be
            except Exception as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=reset, args=(number,), daemon=True) for number in range(4)]
    for one in threads:
        one.start()
    others_are_served(lambda: Caller(open_node.address), other)
    for one in threads:
        one.join(30)
    assert not failed and not any(one.is_alive() for one in threads)
    answered(other)


def test_messages_that_come_a_byte_at_a_time_or_never_end_with_their_turn(
    open_node: NodeProcess, other: Caller
) -> None:
    with sockets(open_node.address, 200) as peers:
        for peer in peers:
            head = h2.greeting() + h2.call(1, KV + "Match", "team-a")
            peer.sendall(head + h2.message(1, 100, b""))
        for _ in range(10):
            for peer in peers:
                peer.sendall(h2.frame(h2.DATA, 1, b"\0"))
            answered(other, 2)


def test_a_message_that_is_announced_too_long_is_refused_before_it_comes(
    open_node: NodeProcess, other: Caller
) -> None:
    with sockets(open_node.address, 100) as peers:
        for peer in peers:
            announced = RPC_MESSAGE_BYTES_MAX + 1
            call = h2.call(1, KV + "Match", "team-a") + h2.message(1, announced, b"x" * 1_000)
            peer.sendall(h2.greeting() + call)
        answered(other)
        for peer in peers:
            assert b"larger than max" in said_until(peer, b"larger than max")


def said_until(peer: socket.socket, words: bytes) -> bytes:
    """What the other side says until it has said these words, or is silent."""
    peer.settimeout(20)
    said = b""
    with suppress(TimeoutError):
        while words not in said and (piece := peer.recv(1 << 16)):
            said += piece
    return said


@pytest.mark.parametrize(
    "said", [b"", h2.PREFACE[:10], h2.PREFACE], ids=["none", "half", "preface"]
)
def test_connections_that_never_say_what_they_want_are_closed_and_felt_by_nobody(
    said: bytes, open_node: NodeProcess, other: Caller
) -> None:
    with sockets(open_node.address, CONNECTIONS) as peers:
        for peer in peers:
            peer.sendall(said)
        others_are_served(lambda: Caller(open_node.address), other)
        hung_up(peers)


# The head of a TLS record that holds a ClientHello of 512 bytes, and the first of those.
HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(40)


@pytest.mark.parametrize("said", [b"", HELLO, b"\xff" * 100], ids=["none", "half", "garbage"])
def test_half_open_handshakes_are_closed_and_felt_by_nobody(
    said: bytes, people: People, tls_node: NodeProcess
) -> None:
    early = caller_of(tls_node, people, "team-b")
    shown = known_at(tls_node, people, "team-b")

    def begun() -> Caller:
        return Caller(tls_node.address, credentials=shown)

    with sockets(tls_node.address, CONNECTIONS) as peers:
        for peer in peers:
            peer.sendall(said)
        others_are_served(begun, early)
        hung_up(peers)
    early.close()


def hung_up(peers: list[socket.socket]) -> None:
    """Each of them is, once it has had its time."""
    left = list(peers)

    def none_left() -> bool:
        left[:] = [peer for peer in left if not h2.closed(peer)]
        return not left

    eventually(none_left, RPC_HANDSHAKE_SECONDS + 60)


def test_a_tenant_in_a_loop_leaves_another_its_calls(
    people: People, tls_node: NodeProcess, place: Path
) -> None:
    """Over TLS, by its token: many threads that do nothing but call."""
    shown, ends = known_at(tls_node, people, "team-a"), time.monotonic() + 3.0
    outcomes: list[str] = []

    def call(credentials: Credentials) -> None:
        with open_channel(tls_node.address, credentials) as channel:
            match = channel.unary_unary(KV + "Match")
            while time.monotonic() < ends:
                futures = [match.future(b"", timeout=20) for _ in range(16)]
                outcomes.extend(code(one) for one in futures)

    quiet = caller_of(tls_node, people, "team-b")
    caller_of(tls_node, people, "team-a").close()
    threads = [threading.Thread(target=call, args=(shown,), daemon=True) for _ in range(8)]
    for one in threads:
        one.start()
    while time.monotonic() < ends:
        answered(quiet, 3)
    for one in threads:
        one.join(60)
    assert not any(one.is_alive() for one in threads)
    assert set(outcomes) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}, outcomes
    quiet.close()


def code(call: Any) -> str:
    error = call.exception()
    return "OK" if error is None else str(error.code().name)
