"""Write windows that are asked for ahead: taken while nobody waits, and given back if nobody wants
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Writer, reserving
from kvstore.client.reserving import Reserving
from kvstore.errors import SessionEnded, Unavailable
from kvstore.wire.v1 import admin_pb2
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of, truth_of

TOKENS, BLOCKS = 30, 4
Stats = Callable[[Client], admin_pb2.StatsReply]
Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of(spec_of("windows"))


def test_the_node_gives_them_while_nobody_waits(
    client: Client, stats_of: Stats, eventually: Eventually
) -> None:
    before = stats_of(client).windows
    windows = client.windows(client.chain(range(TOKENS)))
    eventually(lambda: stats_of(client).windows == before + BLOCKS)
    windows.abort()
    assert stats_of(client).windows == before


def test_the_writer_is_one_and_waits_for_the_answer_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, reply = [], Reserving.reply
    monkeypatch.setattr(Reserving, "reply", lambda one: (waited.append(1), reply(one))[1])
    windows = client.windows(client.chain(range(100, 100 + TOKENS)), first=1)
    assert windows.first == 1 and not waited
    assert isinstance(windows.writer, Writer) and windows.writer is windows.writer
    assert len(waited) == 1 and windows.writer.first == 1
    windows.abort()


def test_an_answer_that_no_socket_would_hold_is_waited_for_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, reply = [], Reserving.reply
    monkeypatch.setattr(Reserving, "reply", lambda one: (waited.append(1), reply(one))[1])
    monkeypatch.setattr(reserving, "UNREAD_BLOCKS", BLOCKS - 1)
    windows = client.windows(client.chain(range(500, 500 + TOKENS)))
    assert len(waited) == 1, "else the node waits for it to leave, and hangs up on its session"
    assert windows.first == 0 and windows.writer.granted.all() and len(waited) == 1
    windows.abort()


def test_what_is_stored_by_them_is_found(client: Client) -> None:
    spec = client.space.spec
    truth = truth_of(spec, TOKENS, 7)
    source, target = Cache(spec, TOKENS), Cache(spec, TOKENS, seed=1)
    source.fill(truth)
    chain = client.chain(range(200, 200 + TOKENS))
    windows = client.windows(chain)
    windows.writer.put(source.memory(client))
    windows.writer.seal()
    windows.abort()  # of which nothing is open any more
    assert client.match(chain).blocks == BLOCKS
    with client.reader(chain, target.memory(client)) as reader:
        while not reader.poll():
            time.sleep(0.001)
    assert target.holds(truth)


def test_a_refusal_is_the_writers_to_hear(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Reserving) -> None:
        raise Unavailable("no room")

    windows = client.windows(client.chain(range(300, 300 + TOKENS)))
    with monkeypatch.context() as refusing:
        refusing.setattr(Reserving, "reply", refused)
        with pytest.raises(Unavailable, match="no room"):
            _ = windows.writer
    windows.abort()


def test_a_node_that_forgot_who_asked_is_asked_once_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, reply = list[Reserving](), Reserving.reply

    def forgotten(asked: Reserving) -> Any:
        waited.append(asked)
        if len(waited) == 1:
            asked.drop()
            raise SessionEnded("not known here")
        return reply(asked)

    monkeypatch.setattr(Reserving, "reply", forgotten)
    windows = client.windows(client.chain(range(400, 400 + TOKENS)))
    assert windows.writer.granted.all()
    assert len(waited) == 2 and waited[0] is not waited[1]
    windows.abort()


def test_windows_of_a_node_that_is_gone_are_given_up_in_silence(own_node: Node) -> None:
    with Client.at(own_node.address, spec_of("gone"), deadline_seconds=2.0) as client:
        windows = client.windows(client.chain(range(TOKENS)))
        own_node.kill()
        windows.abort()
