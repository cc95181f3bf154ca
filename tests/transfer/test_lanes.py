"""Calls that are spread over several connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.errors import Crowded, Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer import lanes
from kvstore.transfer.frames import HELLO, HELLO_MAGIC, WELCOME, Welcome
from kvstore.transfer.landing import Landing
from kvstore.transfer.protocol import Ints, Mask
from kvstore.transfer.tcp import TcpTransport
from kvstore.transfer.term import Term
from kvstore.transfer.ucx_pieces import PiecesTaken
from tests.client.kv import Cache, truth_of
from tests.transfer.tcp_rig import DENSE, SPEC, TOKENS, client, seeds, served, stored

__all__ = ["client", "served"]
SECONDS = 20.0


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


class Port:
    """Stands for a data port that lets one connection in, and refuses all more."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        self.refusals, self.refused = 0, threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        there: list[socket.socket] = []
        with suppress(OSError):  # it was closed
            while True:
                there.append(self._socket.accept()[0])
                there[-1].recv(HELLO.size, socket.MSG_WAITALL)
                answer = Welcome.FULL if there[1:] else Welcome.COME_IN
                there[-1].sendall(WELCOME.pack(HELLO_MAGIC, answer, len(there)))
                if there[1:]:
                    self.refusals += 1
                    self.refused.set()
        for one in there:
            one.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


def test_where_a_node_has_no_connection_left_calls_take_turns_on_those_there_are(
    port: Port,
) -> None:
    mine, numbers = lanes.Lanes(port.address, bytes(16), bytes(16), SECONDS), list[int]()

    def call() -> None:
        with mine.lane() as lane:
            assert port.refused.wait(SECONDS), "nobody else has asked for one"
            numbers.append(lane.number)

    mine.together([call, call])
    assert numbers == [1, 1]
    with mine.lane(), pytest.raises(Crowded, match="a moment ago"):
        mine.spare()  # it waits for nobody
    assert port.refusals == 1, "a node that refused is not asked again at once"
    mine.close()


def test_a_call_that_found_no_memory_here_leaves_its_connection_as_it_was(port: Port) -> None:
    mine = lanes.Lanes(port.address, bytes(16), bytes(16), SECONDS)
    with pytest.raises(PiecesTaken), mine.lane():
        raise PiecesTaken("nobody was asked anything")
    with mine.lane() as lane:
        assert lane.number == 1
    assert not port.refusals, "none was made anew"
    mine.close()


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
