"""What was opened is let go of, however much of it there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest

from kvstore.block import Chain, Miss, foreign
from kvstore.client import Client
from kvstore.client.opened import Opened
from kvstore.client.space import Space
from kvstore.limits import ROOT_BYTES, RPC_KEYS_MAX, RPC_MESSAGE_BYTES_MAX
from kvstore.node.handles import HANDLE_BYTES
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.kv import spec_of


class Owner:
    """Of all that is asked for; it remembers what was closed."""

    session, alive = bytes(16), True

    def __init__(self) -> None:
        self.closed: list[pb.CloseRequest] = []
        self._serial = 0

    @property
    def kv(self) -> Self:
        return self

    def link(self) -> Self:
        return self

    def call(self, _: Any, request: Any) -> Any:
        if isinstance(request, pb.CloseRequest):
            self.post_close(request)
            return pb.CloseReply()
        count = len(request.hashes)
        first, self._serial = self._serial, self._serial + count
        return pb.OpenReply(
            outcomes=[pb.HIT] * count,
            slot_offsets=range(count),
            generations=[1] * count,
            tokens=[4] * count,
            roots=[bytes(ROOT_BYTES)] * count,
            handles=[n.to_bytes(HANDLE_BYTES, "big") for n in range(first, first + count)],
        )

    def post_close(self, request: pb.CloseRequest, timeout: float = 0.0) -> None:
        self.closed.append(request)


def test_blocks_are_closed_and_doubted_in_messages_that_a_node_takes() -> None:
    space, count, owner = Space.of(spec_of("opened"), 0), RPC_KEYS_MAX + 1, Owner()
    blocks = foreign(space.digest, 0, [f"{n}" for n in range(count)], 4)
    for doubted in (np.ones(count, bool), np.zeros(count, bool)):
        owner.closed.clear()
        opened = Opened(owner, space, blocks, (), 0)  # type: ignore[arg-type]
        opened.close(doubted)
        assert max(one.ByteSize() for one in owner.closed) < RPC_MESSAGE_BYTES_MAX
        assert sum(len(set(one.handles)) for one in owner.closed) == count
        assert sum(len(set(one.suspects)) for one in owner.closed) == doubted.sum()


def test_what_has_ended_with_its_session_is_let_go_of_without_a_word() -> None:
    space, owner = Space.of(spec_of("opened"), 0), Owner()
    for doubted in (None, np.ones(1, bool)):
        owner.alive = True
        opened = Opened(owner, space, foreign(space.digest, 0, ["one"], 4), (), 0)  # type: ignore[arg-type]
        owner.alive = False
        opened.close(doubted)
        assert not owner.closed


@pytest.mark.parametrize("ask", [Client.match, Client.hold])
def test_a_miss_of_a_kind_that_a_later_node_knows_is_a_miss(
    ask: Callable[[Client, Chain], Any],
    client_of: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a pool that is upgraded node by node."""
    client, later = client_of(spec_of("later")), 1_000
    replies = {
        pb.MatchRequest: pb.MatchReply(reason=later),
        pb.PinRequest: pb.PinReply(outcomes=[later], handles=[b""], origins=[0]),
    }
    monkeypatch.setattr(client.connection, "call", lambda _, request: replies[type(request)])
    found = ask(client, client.chain(range(5)))
    assert (found.blocks, found.miss) == (0, Miss.ABSENT)
