"""Signals that come sooner than a peer is given up, as a profiler's do: it is given up all the
same."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvstore.errors import Unavailable
from kvstore.transfer import hashed, socket_kernels
from kvstore.transfer.hashed import receive_hashed, send_hashed
from kvstore.transfer.stream import DataStream
from tests.transfer.pairs import STILL_SECONDS, Pair

socket_kernels.load()
MUCH = np.zeros(64 << 20, np.uint8)  # more than sockets keep
LATE_SECONDS = 60 * STILL_SECONDS


def send_rows(stream: DataStream) -> None:
    entries = np.zeros((1, 1), np.uint64)
    pieces = [[entries.ctypes.data, 8], [MUCH.ctypes.data, len(MUCH)]]
    send_hashed(stream, np.array(pieces, np.uint64), entries)


WAYS: dict[str, Callable[[DataStream], object]] = {
    "receive": lambda stream: stream.receive(9),
    "receive_rows": lambda stream: next(stream.receive_rows(9, 1, 1)),
    "receive_hashed": lambda stream: receive_hashed(
        stream, np.array([[MUCH.ctypes.data, 9]], np.uint64)
    ),
    "send": lambda stream: stream.send(MUCH.data),
    "send_hashed": send_rows,
}


@pytest.fixture
def signals(pair: Pair) -> Iterator[None]:
    """To this thread, until it gives its peer up, or long after it should have."""
    before, over = signal.signal(signal.SIGUSR1, lambda *_: None), threading.Event()
    me = threading.main_thread().ident
    assert me is not None

    def interrupt() -> None:
        for _ in range(int(LATE_SECONDS / 0.05)):
            if over.wait(0.05):
                return
            signal.pthread_kill(me, signal.SIGUSR1)
        pair[0].end()

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    over.set()
    thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sent", [0, 5])
def test_a_peer_that_stands_still_is_given_up_whatever_signals_come(
    pair: Pair, way: str, sent: int
) -> None:
    pair[0].allow(STILL_SECONDS)
    pair[1].sendall(bytes(sent))
    with pytest.raises(Unavailable, match="stood still"):
        WAYS[way](pair[0])


@pytest.mark.usefixtures("signals")
def test_a_peer_that_is_slow_and_goes_on_is_not_given_up_for_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair[0].allow(3.0)
    monkeypatch.setattr(hashed, "DATA_RATE_MIN", 1)

    def slowly() -> None:
        for _ in range(15):
            time.sleep(0.25)
            pair[1].sendall(b"x")

    thread = threading.Thread(target=slowly)
    thread.start()
    assert receive_hashed(pair[0], np.array([[MUCH.ctypes.data, 15]], np.uint64)) is not None
    thread.join()
