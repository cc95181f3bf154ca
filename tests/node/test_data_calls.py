"""Calls on the data port of a real node: who is let in, and for how long."""

from __future__ import annotations

from functools import partial

import pytest

from kvstore.client import Client
from kvstore.client.call_sockets import at_data_port
from kvstore.errors import SessionEnded
from kvstore.limits import SOCKET_CALLS_MAX
from kvstore.rpc.socket_client import SocketCalls, Stub
from kvstore.transfer.frames import CALLS_KIND, CALLS_MAGIC, HELLO, HELLO_MAGIC
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    SPEC,
    Caller,
    NodeProcess,
    caller,
    eventually,
    node,
    prompt,
    shared,
    shared_node,
)
from tests.transfer.raw import Raw

__all__ = ["caller", "node", "shared", "shared_node"]

SECONDS = 20.0


def calls_of(session: Caller) -> SocketCalls:
    opened = session.opened
    connect = at_data_port(opened.data_address, session.session, opened.data_token)
    return SocketCalls(connect, "the node")


def greeted(address: str, hello: bytes, kind: bytes = CALLS_KIND) -> bool:
    """Whether the node lets in whoever says this, or hangs up."""
    with Raw(address) as raw:
        raw.socket.sendall(kind + hello)
        try:
            return raw.socket.recv(1) != b""
        except ConnectionResetError:
            return False


def test_calls_are_answered_as_long_as_the_session_lives(node: NodeProcess, caller: Caller) -> None:
    caller.register()
    blocks = prompt(1, 3)
    caller.put(blocks)
    session = node.caller()
    calls = calls_of(session)
    stub = Stub(session.kv, calls)
    about = pb.MatchRequest(**caller.about(blocks))
    assert stub.Match(about, timeout=SECONDS).blocks == 3
    taken = [calls.take(SECONDS) for _ in range(SOCKET_CALLS_MAX)]
    assert all(taken)
    more = calls_of(session)
    assert more.take(SECONDS) is None, "a session has so many and no more"
    session.close()
    last = taken[0]
    assert last is not None
    last.settimeout(SECONDS)
    assert last.recv(1) == b"", "its connections end with it"
    late = calls_of(session)
    assert late.take(SECONDS) is None, "and its token is good for none"
    for one in (calls, more, late):
        one.close()
    assert caller.match(blocks)[0] == 3


def test_a_place_is_free_again_once_its_caller_has_hung_up(shared: Caller) -> None:
    for _ in range(3):
        calls = calls_of(shared)
        assert eventually(partial(calls.take, SECONDS))
        assert all(calls.take(SECONDS) for _ in range(SOCKET_CALLS_MAX - 1))
        calls.close()


def test_what_a_session_reads_is_its_own(shared: Caller, shared_node: NodeProcess) -> None:
    other, calls = shared_node.caller(), calls_of(shared)
    shared.put(prompt(700))
    foreign = pb.OpenRequest(session=bytes(16), **shared.about(prompt(700)))
    with pytest.raises(SessionEnded):
        Stub(other.kv, calls).Open(foreign, timeout=SECONDS)
    calls.close()
    other.close()


def test_whoever_shows_no_session_that_is_known_is_hung_up_on_and_counted(shared: Caller) -> None:
    opened, before = shared.opened, shared.counters()["data_refusals"]
    wrong = [
        HELLO.pack(CALLS_MAGIC, shared.session, opened.shm_token),
        HELLO.pack(CALLS_MAGIC, opened.data_token, shared.session),
        HELLO.pack(CALLS_MAGIC, bytes(16), bytes(16)),
        HELLO.pack(HELLO_MAGIC, shared.session, opened.data_token),  # of the other kind
    ]
    for hello in wrong:
        assert not greeted(opened.data_address, hello)
    assert shared.counters()["data_refusals"] == before + len(wrong)
    right = HELLO.pack(CALLS_MAGIC, shared.session, opened.data_token)
    assert greeted(opened.data_address, right)
    assert not greeted(opened.data_address, right + b"more"), "nothing is said before the answer"
    assert not greeted(opened.data_address, CALLS_KIND + right), "one kind is enough"


@pytest.mark.parametrize("said", [b"", CALLS_KIND, CALLS_KIND + bytes(20)])
def test_whoever_does_not_finish_its_greeting_is_hung_up_on(shared: Caller, said: bytes) -> None:
    with Raw(shared.opened.data_address) as raw:
        raw.socket.sendall(said)
        assert raw.ended(), "in its time"


def test_a_caller_of_another_host_makes_its_calls_there(shared_node: NodeProcess) -> None:
    told = {"label": "far", "transport": "tcp", "deadline_seconds": SECONDS}
    with Client.at(shared_node.address, SPEC, **told) as client:
        assert client.match(prompt(800, 2)).blocks == 0
        link = client.connection.link()
        (made,) = link._sockets._free
        assert made.getpeername()[1] == int(link.opened.data_address.rpartition(":")[2])
