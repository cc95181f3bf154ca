"""One data connection: exact numbers of bytes, in order, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from kvstore.errors import Unavailable
from kvstore.transfer import stream as module
from kvstore.transfer.stream import DataStream
from tests.transfer.pairs import STILL_SECONDS, Pair


def drained(peer: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        got += peer.recv(min(7_000, count - len(got)))
    return bytes(got)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_size_come_whole_and_in_order(pair: Pair, seed: int) -> None:
    stream, peer = pair
    dice = np.random.default_rng(seed)
    sizes = dice.integers(0, 5_000, 1_500)  # more pieces than one call to the kernel takes
    pieces = [dice.bytes(int(size)) for size in sizes]
    whole = b"".join(pieces)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(drained(peer, len(whole))))
    thread.start()
    assert stream.send_all(iter(pieces)) == len(whole)
    thread.join(10.0)
    assert got == [whole]
    thread = threading.Thread(target=peer.sendall, args=(whole,))
    thread.start()
    room = [bytearray(int(size)) for size in sizes]
    assert stream.receive_into(map(memoryview, room)) == len(whole)
    thread.join(10.0)
    assert b"".join(room) == whole


@pytest.mark.parametrize("seed", range(5))
def test_rows_come_as_soon_as_they_are_whole(pair: Pair, seed: int) -> None:
    stream, peer = pair
    dice = np.random.default_rng(seed)
    size, count, most = int(dice.integers(1, 500)), int(dice.integers(1, 90)), 7
    whole = dice.bytes(size * count)
    rows, got, sent = stream.receive_rows(size, count, most), b"", 0
    while len(got) < len(whole):
        while sent < len(got) + size:  # in parts, with some of the next ones
            more = int(dice.integers(1, 3 * size + 1))
            peer.sendall(whole[sent : sent + more])
            sent = min(sent + more, len(whole))
        came = next(rows)
        assert len(came) % size == 0 and size <= len(came) <= most * size
        got += bytes(came)
    assert got == whole and next(rows, None) is None


def test_rows_of_a_peer_that_hangs_up_or_stands_still_are_given_up(pair: Pair) -> None:
    stream, peer = pair
    peer.sendall(bytes(15))
    rows = stream.receive_rows(10, 2, 2)
    assert bytes(next(rows)) == bytes(10)
    stream.allow(STILL_SECONDS)
    with pytest.raises(Unavailable, match="stood still"):
        next(rows)
    peer.close()
    with pytest.raises(Unavailable, match="hung up"):
        next(stream.receive_rows(10, 1, 1))


def test_a_peer_that_says_nothing_is_given_up_in_time(pair: Pair) -> None:
    pair[0].allow(STILL_SECONDS)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="stood still"):
        pair[0].receive(1)
    assert 0.4 < time.monotonic() - began < 10.0


def test_a_peer_that_takes_nothing_is_given_up_in_time(pair: Pair) -> None:
    pair[0].allow(STILL_SECONDS)
    with pytest.raises(Unavailable, match="stood still"):
        pair[0].send(bytes(64 << 20))


def test_a_peer_that_trickles_is_given_up_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, peer = pair
    stream.allow(STILL_SECONDS)
    monkeypatch.setattr(module, "DATA_RATE_MIN", 1_000)
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.1):
            peer.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(Unavailable, match="stood still"):
            stream.receive(1_000)
    finally:
        over.set()
        thread.join(10.0)


def test_a_peer_that_hangs_up_in_the_middle_is_told_from_one_that_is_done(pair: Pair) -> None:
    stream, peer = pair
    peer.sendall(b"half")
    peer.close()
    assert not stream.quiet(5.0), "its end is something"
    with pytest.raises(Unavailable, match="hung up"):
        stream.receive(8)


def test_whoever_ends_a_stream_frees_the_thread_that_waits_on_it(pair: Pair) -> None:
    stream, _ = pair
    stream.allow(60.0)
    failed: list[str] = []

    def wait() -> None:
        try:
            stream.receive(1)
        except Unavailable as error:
            failed.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    stream.end()
    thread.join(10.0)
    assert failed and not thread.is_alive()


def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
    with pytest.raises(Unavailable, match="cannot be reached"):
        DataStream.connect(address, 1.0)


def test_a_name_that_nobody_resolves_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, over = socket.getaddrinfo, threading.Event()

    def silent(host: str, *given: Any, **more: Any) -> Any:
        if host == "node.example":
            assert over.wait(20.0)
        return resolve("127.0.0.1", *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"node\.example:1 cannot be reached: .*resolved"):
        DataStream.connect(("node.example", 1), STILL_SECONDS)
    assert time.monotonic() - began < 10.0
    over.set()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        DataStream.connect(("node.example", listening.getsockname()[1]), 20.0).close()
