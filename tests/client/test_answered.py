"""What a node answers to one call is no word on the others, nor on the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from kvstore.client import Client, Match, Miss
from kvstore.rpc.socket_client import SocketCalls
from tests.client.kv import Cache, spec_of, truth_of

TOKENS, BLOCKS = 30, 4
UNREACHABLE = Match(0, 0, Miss.UNREACHABLE)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[grpc.StatusCode, str], None]:
    """Has the node answer the next call with a status, and with a class and a message."""
    answer: Any = SocketCalls._answer

    def say(code: grpc.StatusCode, said: str) -> None:
        def said_once(*given: Any) -> tuple[int, int, bytes]:
            monkeypatch.setattr(SocketCalls, "_answer", answer)
            answer(*given)
            return int(code.value[0]), 0, said.encode()

        monkeypatch.setattr(SocketCalls, "_answer", said_once)

    return say


def test_a_node_that_says_what_it_cannot_do_now_keeps_its_session(
    client_of: Callable[..., Client], answering: Callable[[grpc.StatusCode, str], None]
) -> None:
    """As where its metadata is on a disk that is full, of which most calls need nothing."""
    spec = spec_of("answered")
    client, cache = client_of(spec), Cache(spec, TOKENS)
    cache.fill(truth_of(spec, TOKENS, 1))
    chain, link = client.chain(range(TOKENS)), client.connection.link()
    with client.writer(chain) as writer:
        answering(grpc.StatusCode.UNAVAILABLE, "Unavailable\nits metadata is full")
        assert client.match(chain) == UNREACHABLE
        assert client.reachable and client.connection.link() is link
        writer.put(cache.memory(client))
        assert writer.seal() == ["SEALED"] * BLOCKS


@pytest.mark.parametrize("said", ["\n", "Unavailable\nit was not over within 10 s"])
def test_a_call_that_the_node_did_not_come_to_an_end_with_ends_the_session(
    client_of: Callable[..., Client],
    answering: Callable[[grpc.StatusCode, str], None],
    said: str,
) -> None:
    """What it has done by then, and for whom the node keeps it, nobody knows."""
    client = client_of(spec_of("unanswered"))
    answering(grpc.StatusCode.DEADLINE_EXCEEDED, said)
    assert client.match(client.chain(range(TOKENS))) == UNREACHABLE
    assert not client.reachable


def test_a_tenant_that_holds_all_it_may_is_told_so_and_not_that_the_node_is_away(
    client_of: Callable[..., Client], answering: Callable[[grpc.StatusCode, str], None]
) -> None:
    spec = spec_of("overloaded")
    client, cache = client_of(spec), Cache(spec, TOKENS)
    chain = client.chain(range(TOKENS))
    asks: list[Callable[[], Match]] = [
        lambda: client.match(chain),
        lambda: client.get(chain, cache.memory(client)),
    ]
    for ask in asks:
        answering(grpc.StatusCode.RESOURCE_EXHAUSTED, "Overloaded\nit holds all it may")
        assert ask() == Match(0, 0, Miss.NO_ROOM)
