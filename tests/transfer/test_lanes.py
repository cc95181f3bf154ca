"""Calls that are spread over several connections."""

from __future__ import annotations

import threading

import pytest

from kvstore.client import Client
from kvstore.transfer import lanes
from kvstore.transfer.tcp import TcpTransport
from tests.client.kv import Cache, truth_of
from tests.transfer.tcp_rig import DENSE, SPEC, TOKENS, client, seeds, served, stored

__all__ = ["client", "served"]


def test_where_no_thread_can_be_had_a_call_is_done_by_its_caller_and_nothing_comes_later(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is another sequence's by then."""
    chain, truth = stored(client)  # on one connection, by one thread
    monkeypatch.setattr(lanes, "_SPREAD_BYTES", 1)
    monkeypatch.setattr(TcpTransport, "ahead", lambda *_: None)
    monkeypatch.setattr(client.connection.link().transport.lanes, "_streams", 2)
    target, later = Cache(SPEC, TOKENS, **DENSE), Cache(SPEC, TOKENS, **DENSE)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with client.reader(chain, target.memory(client)) as reader:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            assert reader.poll() and reader.blocks == 2
        assert target.holds(truth)
        target.fill(other := truth_of(SPEC, TOKENS, next(seeds)))
        for _ in range(3):  # there are threads again: what stood in line is gone
            assert client.get(chain, later.memory(client)).blocks == 2
    assert later.holds(truth) and target.holds(other)
