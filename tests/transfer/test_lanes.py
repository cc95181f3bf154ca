"""Calls that are spread over several connections."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.errors import Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer import lanes
from kvstore.transfer.landing import Landing
from kvstore.transfer.protocol import Ints, Mask
from kvstore.transfer.tcp import TcpTransport
from kvstore.transfer.term import Term
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


class Unwanted(Landing):
    """Nobody wants what comes here any more once all of it has come, and is being proven."""

    def __init__(self, term: Term, tokens: np.ndarray) -> None:
        layout = SlotLayout.of(SPEC, 0)
        memory = np.zeros(len(tokens) * layout.payload_bytes, np.uint8)
        super().__init__(layout, memory, np.arange(len(tokens)) * layout.payload_bytes, tokens)
        self._term = term

    def proven(self, rows: Ints, fragment: Fragment, roots: np.ndarray) -> Mask:
        self._term.end()
        return super().proven(rows, fragment, roots)


def test_a_connection_of_a_call_that_is_given_up_at_its_very_end_is_nobody_elses(
    client: Client,
) -> None:
    """It is hung up: whoever had it next would take a node that serves for one that is gone."""
    chain, truth = stored(client)
    target, term = Cache(SPEC, TOKENS, **DENSE), Term()
    with client.reader(chain, target.memory(client)) as reader:
        assert reader.poll()
        slots = reader._opened.slots
        mine = cast(Any, client.connection.link().transport).lanes
        into, rows = Unwanted(term, slots.tokens), np.arange(len(slots))
        with pytest.raises(Unavailable, match="nobody wants it"):
            mine.pull(into.layout, slots, into.layout.whole, into, rows, term)
        assert mine.look(slots, into.layout.whole).found.all()
    assert target.holds(truth)
