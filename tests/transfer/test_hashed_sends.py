"""What is hashed as it is sent: a peer gets of each row its entries, then its strips, and nobody
waits for one that takes nothing."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from kvstore.errors import Unavailable
from kvstore.transfer import hashed as module
from kvstore.transfer import socket_kernels
from kvstore.transfer.hashed import send_hashed
from tests.transfer.pairs import HASHED_TO_ZERO, STILL_SECONDS, Pair

socket_kernels.load()
MUCH = 64 << 20  # more than sockets keep


class Rows:
    """Rows of strips somewhere in memory, as they are to be sent."""

    def __init__(self, rows: int, sizes: list[int], seed: int = 0) -> None:
        dice = np.random.default_rng(seed)
        self.room = np.frombuffer(dice.bytes(rows * sum(size + 9 for size in sizes)), np.uint8)
        self.entries = np.zeros((rows, len(sizes)), np.uint64)
        self.pieces = np.zeros((rows, 1 + len(sizes), 2), np.uint64)
        self.pieces[:, 0, 0] = self.entries.ctypes.data + 8 * len(sizes) * np.arange(rows)
        self.pieces[:, 0, 1] = 8 * len(sizes)
        each = np.array(rows * sizes)
        self.starts = (each + 9)[::-1].cumsum()[::-1] - each  # the last of them first
        self.pieces[:, 1:, 0] = (self.room.ctypes.data + self.starts).reshape(rows, -1)
        self.pieces[:, 1:, 1] = sizes
        self.each = each

    def wanted(self) -> bytes:
        """As a peer is to have it."""
        strips = [
            self.room[at : at + size].tobytes()
            for at, size in zip(self.starts.tolist(), self.each.tolist(), strict=True)
        ]
        width, told = self.entries.shape[1], b""
        for first in range(0, len(strips), width):
            row = strips[first : first + width]
            told += b"".join(xxhash.xxh3_64_intdigest(one).to_bytes(8, "little") for one in row)
            told += b"".join(row)
        return told

    def send(self, pair: Pair) -> bool:
        return send_hashed(pair[0], self.pieces.reshape(-1, 2), self.entries)


class Taker:
    """Takes all that comes, slowly at first. Use as a context manager."""

    def __init__(self, peer: socket.socket, count: int, pause: float = 0.0) -> None:
        self._peer, self._left, self._pause = peer, count, pause
        self.came = bytearray()
        self._thread = threading.Thread(target=self._take)

    def __enter__(self) -> Taker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20.0)

    def _take(self) -> None:
        while self._left:
            time.sleep(self._pause)
            got = self._peer.recv(min(self._left, 1 << 20))
            self.came += got
            self._left -= len(got)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, [1]),
        (3, [40, 900, 7]),
        (70, [5_000] * 4),
        (2, [700_000, 300_000]),  # each is more than the kernel is given at once
        (5, [64] * 1_500),  # a row has more pieces than it takes at once
        (900, [128]),
        (40, [100_000] * 8),
    ],
    ids=str,
)
def test_each_row_goes_with_the_hashes_of_its_strips_before_it(
    pair: Pair, rows: int, sizes: list[int]
) -> None:
    one = Rows(rows, sizes, seed=rows)
    asked, wanted = one.pieces.copy(), one.wanted()
    with Taker(pair[1], len(wanted), 0.0005) as taker:
        assert one.send(pair)
    assert bytes(taker.came) == wanted
    assert (one.pieces == asked).all()


def test_no_entry_says_of_a_strip_that_it_is_not_written(pair: Pair) -> None:
    one = Rows(1, [8])
    one.room = np.frombuffer(HASHED_TO_ZERO, np.uint8)
    one.pieces[0, 1, 0] = one.room.ctypes.data
    assert one.send(pair)
    assert pair[1].recv(16, socket.MSG_WAITALL) == (1).to_bytes(8, "little") + HASHED_TO_ZERO


@pytest.fixture
def stuck(pair: Pair) -> Iterator[Rows]:
    """More than a peer that takes nothing has room for."""
    pair[0].allow(STILL_SECONDS)
    yield Rows(64, [MUCH // 64])


def test_a_peer_that_takes_nothing_is_given_up_in_time(pair: Pair, stuck: Rows) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="stood still"):
        stuck.send(pair)
    assert 0.4 < time.monotonic() - began < 10.0


def test_a_peer_that_hangs_up_ends_it_and_not_the_process(pair: Pair, stuck: Rows) -> None:
    came: list[int] = []  # Python lets these pass, and a program that embeds it may not
    before = signal.signal(signal.SIGPIPE, lambda number, _: came.append(number))
    pair[1].close()
    try:
        for _ in range(2):  # what is sent after the end is known is what would be answered so
            with pytest.raises(Unavailable, match="data connection broke"):
                stuck.send(pair)
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert not came


def test_a_peer_that_takes_it_too_slowly_is_given_up_too(
    pair: Pair, stuck: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DATA_RATE_MIN", 100 << 20)
    over = threading.Event()

    def sip() -> None:
        while not over.wait(0.02):
            pair[1].recv(1 << 18)

    sipping = threading.Thread(target=sip)
    sipping.start()
    try:
        with pytest.raises(Unavailable, match="stood still"):
            stuck.send(pair)
    finally:
        over.set()
        sipping.join(10.0)


def test_a_peer_that_takes_it_slowly_and_not_too_slowly_may_take_its_time(
    pair: Pair, stuck: Rows
) -> None:
    pair[0].allow(1.0)
    began, wanted = time.monotonic(), MUCH + stuck.entries.nbytes
    with Taker(pair[1], wanted, 0.02) as taker:  # for a MiB at most
        assert stuck.send(pair)
    assert len(taker.came) == wanted
    assert time.monotonic() - began > 1.0, "the test is to take longer than a standstill may"


def test_whoever_ends_a_stream_frees_the_thread_that_sends_on_it(pair: Pair, stuck: Rows) -> None:
    pair[0].allow(60.0)
    threading.Timer(0.2, pair[0].end).start()
    with pytest.raises(Unavailable, match="data connection broke"):
        stuck.send(pair)


def test_a_call_says_how_far_it_came_and_the_next_hashes_no_row_again(
    pair: Pair, stuck: Rows
) -> None:
    kernels, state = socket_kernels.at_hand(0), np.zeros(5, np.int64)
    assert kernels is not None
    pieces, until = stuck.pieces.reshape(-1, 2), time.monotonic() + 60.0
    given = (pair[0].descriptor, pieces, stuck.entries, until, 1e3, state)
    kernels.write.send(*given)
    at, into, moved, ready, why = state.tolist()
    assert why == errno.EAGAIN and moved == pieces[:at, 1].sum() + into
    assert ready == at // 2 + 1, "the row that is on its way is hashed, and none behind it"
    assert stuck.entries[:ready].all() and not stuck.entries[ready:].any()
    wanted = stuck.wanted()
    stuck.entries[0] = 7
    with Taker(pair[1], len(wanted)):
        kernels.write.send(*given)
    assert state.tolist() == [len(pieces), 0, len(wanted), len(stuck.entries), 0]
    assert stuck.entries[0] == 7


def test_what_has_all_gone_has_not_gone_too_late(pair: Pair) -> None:
    kernels, state, long_ago = socket_kernels.at_hand(0), np.zeros(5, np.int64), 0.0
    assert kernels is not None
    one = Rows(1, [92])
    given = (one.pieces.reshape(-1, 2), one.entries, long_ago, 1e18, state)
    kernels.write.send(pair[0].descriptor, *given)
    assert state.tolist() == [2, 0, 100, 1, 0]


def test_a_signal_in_the_middle_costs_no_byte(pair: Pair) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    me, one = threading.main_thread().ident, Rows(64, [200_000])
    assert me is not None
    wanted = one.wanted()

    def interrupt() -> None:
        for _ in range(5):
            time.sleep(0.02)
            signal.pthread_kill(me, signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt)
    try:
        with Taker(pair[1], len(wanted), 0.005) as taker:
            interrupting.start()
            one.send(pair)
            interrupting.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came, "the test sends none"
    assert bytes(taker.came) == wanted


def test_nothing_is_sent_where_the_process_cannot(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_kernels, "at_hand", lambda size: None)
    assert not Rows(2, [100]).send(pair)
    pair[1].settimeout(0.1)
    with pytest.raises(TimeoutError):
        pair[1].recv(1)
