"""What is hashed while it lands: bytes and entries as they were sent, and nobody waits for ever."""

from __future__ import annotations

import errno
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import xxhash

from kvstore.errors import Unavailable
from kvstore.transfer import hashed as module
from kvstore.transfer import socket_kernels
from kvstore.transfer.hashed import receive_hashed, send_hashed
from tests.transfer.pairs import HASHED_TO_ZERO, STILL_SECONDS, Pair

socket_kernels.load()
ROOM = np.zeros(40_000, np.uint8)


def pieces_of(room: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Pieces that lie in reverse order, ten bytes apart."""
    starts = (sizes + 10)[::-1].cumsum()[::-1] - sizes
    assert starts.min() >= 0 and (starts + sizes).max() <= len(room)
    return np.stack([room.ctypes.data + starts, sizes], axis=1).astype(np.uint64)


@contextmanager
def doing(what: Any, *arguments: Any) -> Iterator[None]:
    thread = threading.Thread(target=what, args=arguments)
    thread.start()
    try:
        yield
    finally:
        thread.join(10.0)


def sent_in_parts(peer: socket.socket, whole: bytes, cuts: list[int]) -> None:
    for first, last in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        peer.sendall(whole[first:last])
        time.sleep(0.001)


@pytest.mark.parametrize("seed", range(8))
def test_pieces_of_any_size_land_whole_in_order_with_the_hash_of_each(
    pair: Pair, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    largest = [40, 900, 5_000, 700_000][seed % 4]  # more than are asked for at once, and larger
    sizes = dice.integers(1, largest, 1_200 if largest < 6_000 else 20).astype(np.int64)
    truth = [dice.bytes(size) for size in sizes]
    room = np.zeros(int(sizes.sum()) + 10 * len(sizes), np.uint8)
    pieces = pieces_of(room, sizes)
    asked = pieces.copy()
    whole = b"".join(truth)
    cuts = sorted(dice.integers(0, len(whole), 30).tolist())
    with doing(sent_in_parts, pair[1], whole, cuts):
        entries = receive_hashed(pair[0], pieces)
    assert entries is not None and (pieces == asked).all()
    starts = pieces[:, 0].astype(np.int64) - room.ctypes.data
    for start, size, wanted, entry in zip(starts, sizes, truth, entries, strict=True):
        assert room[start : start + size].tobytes() == wanted
        assert entry == xxhash.xxh3_64_intdigest(wanted)
        room[start : start + size] = 0
    assert not room.any(), "nothing lands beside a piece"


def test_no_entry_says_of_a_strip_that_came_that_it_is_not_written(pair: Pair) -> None:
    assert xxhash.xxh3_64_intdigest(HASHED_TO_ZERO) == 0
    pair[1].sendall(HASHED_TO_ZERO)
    entries = receive_hashed(pair[0], pieces_of(ROOM, np.array([8])))
    assert entries is not None and entries.tolist() == [1]


def test_not_a_byte_more_is_taken_than_belongs_to_the_pieces(pair: Pair) -> None:
    pair[1].sendall(bytes(range(100)))
    assert receive_hashed(pair[0], pieces_of(ROOM, np.array([30, 40]))) is not None
    assert pair[0].receive(30) == bytes(range(70, 100))


@pytest.mark.parametrize("sent", [0, 1, 5_000, 19_999])
def test_a_peer_that_stops_in_the_middle_is_given_up_in_time(pair: Pair, sent: int) -> None:
    pair[0].allow(STILL_SECONDS)
    pair[1].sendall(bytes(sent))
    began = time.monotonic()
    with pytest.raises(Unavailable, match="stood still"):
        receive_hashed(pair[0], pieces_of(ROOM, np.full(4, 5_000)))
    assert 0.4 < time.monotonic() - began < 10.0


@pytest.mark.parametrize("sent", [0, 1, 5_000, 19_999])
def test_a_peer_that_hangs_up_in_the_middle_is_told_from_one_that_is_done(
    pair: Pair, sent: int
) -> None:
    pair[1].sendall(bytes(sent))
    pair[1].close()
    with pytest.raises(Unavailable, match="hung up"):
        receive_hashed(pair[0], pieces_of(ROOM, np.full(4, 5_000)))


def test_a_connection_that_is_reset_in_the_middle_ends_it(pair: Pair) -> None:
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair[1].close()
    with pytest.raises(Unavailable, match="reset"):
        receive_hashed(pair[0], pieces_of(ROOM, np.full(4, 5_000)))


def test_a_peer_that_trickles_is_given_up_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair[0].allow(STILL_SECONDS)
    monkeypatch.setattr(module, "DATA_RATE_MIN", 1_000)
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.1):
            pair[1].sendall(b"x")

    with doing(trickle):
        try:
            with pytest.raises(Unavailable, match="stood still"):
                receive_hashed(pair[0], pieces_of(ROOM, np.full(9, 1_000)))
        finally:
            over.set()


def test_a_peer_that_is_slow_and_not_too_slow_may_take_its_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair[0].allow(1.0)
    monkeypatch.setattr(module, "DATA_RATE_MIN", 1_000)

    def slowly() -> None:
        for _ in range(30):
            time.sleep(0.05)
            pair[1].sendall(bytes(1_000))

    began = time.monotonic()
    with doing(slowly):
        assert receive_hashed(pair[0], pieces_of(ROOM, np.full(30, 1_000))) is not None
    assert time.monotonic() - began > 1.0, "the test is to take longer than a standstill may"


def test_a_call_says_how_far_it_came_for_the_next_to_go_on(pair: Pair) -> None:
    kernels, state = socket_kernels.at_hand(0), np.zeros(5, np.int64)
    assert kernels is not None
    pieces, entries = pieces_of(ROOM, np.full(4, 100)), np.zeros(4, np.uint64)
    pair[0].allow(0.1)
    until = time.monotonic() + 60.0
    for sent, said in ((250, [2, 50, 250]), (100, [3, 50, 350]), (50, [4, 0, 400])):
        pair[1].sendall(bytes(sent))
        kernels.read.receive(pair[0].descriptor, pieces, entries, until, 1e3, state)
        assert state.tolist() == [*said, 0, 0 if said[0] == 4 else errno.EAGAIN]
    assert entries.all()


def test_what_is_all_there_is_not_too_late(pair: Pair) -> None:
    kernels, state, long_ago = socket_kernels.at_hand(0), np.zeros(5, np.int64), 0.0
    assert kernels is not None
    pair[1].sendall(bytes(100))
    one = (pieces_of(ROOM, np.array([100])), np.zeros(1, np.uint64))
    kernels.read.receive(pair[0].descriptor, *one, long_ago, 1e18, state)
    assert state.tolist() == [1, 0, 100, 0, 0]


def test_a_signal_in_the_middle_costs_no_byte(pair: Pair) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    me, truth = threading.main_thread().ident, np.random.default_rng(3).bytes(20_000)
    assert me is not None

    def interrupt() -> None:
        pair[1].sendall(truth[:7_000])
        for _ in range(3):
            time.sleep(0.05)
            signal.pthread_kill(me, signal.SIGUSR1)
        pair[1].sendall(truth[7_000:])

    room = np.zeros(20_040, np.uint8)
    try:
        with doing(interrupt):
            entries = receive_hashed(pair[0], pieces_of(room, np.full(4, 5_000)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came, "the test sends none"
    assert entries is not None
    wanted = [xxhash.xxh3_64_intdigest(truth[i : i + 5_000]) for i in range(0, 20_000, 5_000)]
    assert entries.tolist() == wanted


def test_whoever_ends_a_stream_frees_the_thread_that_waits_on_it(pair: Pair) -> None:
    pair[0].allow(60.0)
    failed: list[str] = []

    def wait() -> None:
        try:
            receive_hashed(pair[0], pieces_of(ROOM, np.array([9])))
        except Unavailable as error:
            failed.append(str(error))

    with doing(wait):
        time.sleep(0.1)
        pair[0].end()
    assert failed


class Sealed:
    """A stream whose bytes are sealed on their way."""

    descriptor = None


def test_of_bytes_that_are_sealed_none_is_moved_and_no_compiler_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_kernels, "at_hand", lambda size: pytest.fail("it is asked for"))
    sealed: Any = Sealed()
    pieces = pieces_of(ROOM, np.array([8, 1_000]))
    assert receive_hashed(sealed, pieces) is None
    assert not send_hashed(sealed, pieces, np.zeros((1, 1), np.uint64))


def test_how_many_bytes_come_says_whether_a_compiler_pays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(socket_kernels, "at_hand", asked.append)
    assert receive_hashed(pair[0], pieces_of(ROOM, np.array([8, 1_000]))) is None
    assert asked == [1_008]
