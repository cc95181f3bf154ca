"""Who is interrupted while it waits for a node leaves nothing there that nobody knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvstore.block import Chain
from kvstore.client import Client
from kvstore.client.answer import Answer
from kvstore.client.hold import Hold
from kvstore.client.pinned import Pinned
from kvstore.rpc.socket_client import SocketCalls
from kvstore.wire.v1 import admin_pb2
from tests.client.kv import Cache, spec_of, truth_of

TOKENS = 30
SPEC = spec_of("interrupted")


def test_blocks_that_were_reserved_for_who_was_interrupted_are_given_up(
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], admin_pb2.StatsReply],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, other = client_of(SPEC), client_of(SPEC)
    chain, cache = client.chain(range(TOKENS)), Cache(SPEC, TOKENS)
    cache.fill(truth_of(SPEC, TOKENS, 1))
    with interrupting(monkeypatch):
        client.writer(chain)
    eventually(lambda: stats_of(other).windows == 0)
    assert client.put(chain, cache.memory(client)) == len(chain), "by a session of its own"


def test_so_are_those_that_were_asked_for_ahead_and_are_not_wanted_any_more(
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], admin_pb2.StatsReply],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, other = client_of(SPEC), client_of(SPEC)
    windows = client.windows(client.chain(range(100, 100 + TOKENS)))
    with interrupting(monkeypatch):
        windows.abort()
    eventually(lambda: stats_of(other).windows == 0)


@pytest.mark.parametrize("read", [Client.pin, Client.hold])
def test_blocks_that_were_opened_for_who_was_interrupted_are_pinned_no_more(
    read: Callable[[Client, Chain], Any],
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], admin_pb2.StatsReply],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, other = client_of(SPEC), client_of(SPEC)
    chain, cache = client.chain(range(200, 200 + TOKENS)), Cache(SPEC, TOKENS)
    client.put(chain, cache.memory(client))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SocketCalls, "_give_back", _interrupted)
        read(client, chain)
    eventually(lambda: stats_of(other).pins == 0)


@pytest.mark.parametrize(
    ("read", "let_go"), [(Client.pin, Pinned.close), (Client.hold, Hold.release)]
)
def test_nor_are_those_that_who_was_interrupted_was_about_to_let_go(
    read: Callable[[Client, Chain], Any],
    let_go: Callable[[Any], None],
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], admin_pb2.StatsReply],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, other = client_of(SPEC, transport="shm"), client_of(SPEC)
    chain, cache = client.chain(range(300, 300 + TOKENS)), Cache(SPEC, TOKENS)
    client.put(chain, cache.memory(client))
    held = read(client, chain)
    assert stats_of(other).pins == len(chain)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SocketCalls, "_send", _interrupted)
        let_go(held)
    eventually(lambda: stats_of(other).pins == 0)


def _interrupted(*_: object) -> None:
    """As a call is about to be sent; or its answer is here, and its caller has it not yet."""
    raise KeyboardInterrupt


@contextmanager
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In it an answer comes, and before its caller has it, it is interrupted."""

    def interrupted(answer: Answer[Any]) -> None:
        get(answer)
        raise KeyboardInterrupt

    get = Answer.get
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Answer, "get", interrupted)
        yield
