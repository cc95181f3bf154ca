"""Who is interrupted while it waits for a node leaves nothing there that nobody knows of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client
from kvstore.client.answer import Answer
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

    def interrupted(answer: Answer[Any]) -> None:
        get(answer)
        raise KeyboardInterrupt

    get = Answer.get
    with monkeypatch.context() as patched:
        patched.setattr(Answer, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.writer(chain)
    eventually(lambda: stats_of(other).windows == 0)
    assert client.put(chain, cache.memory(client)) == len(chain), "by a session of its own"
