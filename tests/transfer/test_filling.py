"""Blocks that pass through a connection's own buffer, where they take its few places in turn."""

from __future__ import annotations

import pytest

from kvstore.client import Client, Miss
from kvstore.errors import WindowClosed
from kvstore.transfer import lanes
from kvstore.transfer.tcp import TcpTransport
from kvstore.wire.v1 import kv_pb2
from tests.client.kv import Cache, truth_of
from tests.transfer.tcp_rig import DENSE, MIXED, SPEC, client, seeds, served, stored

__all__ = ["client", "served"]


def let_go(client: Client, handle: bytes) -> None:
    """One block's pin ends before its time."""
    session = client.connection.link().session
    request = kv_pb2.CloseRequest(session=session, handles=[handle])
    client.connection.call(lambda link: link.kv.Close, request)


def give_up(client: Client, handle: bytes) -> None:
    """One block's window ends."""
    session = client.connection.link().session
    request = kv_pb2.AbortRequest(session=session, handles=[handle])
    client.connection.call(lambda link: link.kv.Abort, request)


def test_blocks_behind_one_that_cannot_be_had_are_not_taken_for_those_before_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They pass through a buffer with two places, so the first and the third have the same one."""
    chain, truth = stored(client, 4 * 32)
    monkeypatch.setattr(lanes.Lane, "staging_bytes", 2 * client.space.layout.payload_bytes)
    monkeypatch.setattr(TcpTransport, "ahead", lambda *_: None)
    target = Cache(SPEC, 4 * 32, **MIXED)
    with client.reader(chain, target.memory(client)) as reader:
        let_go(client, reader._opened._handles[1])
        assert reader.poll()
        assert (reader.blocks, reader.miss) == (1, Miss.EVICTED)
        assert target.holds(truth, 0, reader.tokens)


def test_a_block_behind_one_that_is_refused_is_stored_from_its_own_pages(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, seed = 4 * 32, next(seeds)
    monkeypatch.setattr(lanes.Lane, "staging_bytes", 2 * client.space.layout.payload_bytes)
    chain = client.chain(range(1_000 * seed, 1_000 * seed + tokens))
    truth = truth_of(SPEC, tokens, seed)
    source = Cache(SPEC, tokens, **MIXED)
    source.fill(truth)
    with client.writer(chain) as writer:
        give_up(client, writer._handles[1])
        with pytest.raises(WindowClosed):
            writer.put(source.memory(client))
        assert writer.seal(blocks=(0, 1)) == ["SEALED"]
    target = Cache(SPEC, tokens, **DENSE)
    assert client.get(chain, target.memory(client)).blocks == 1
    assert target.holds(truth, 0, 32)
