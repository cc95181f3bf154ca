"""The proxy does to a connection what it was told, to the byte, and nothing when told nothing."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvstore.limits import KiB, MiB
from tests.faults.proxy import Faults, Proxy
from tests.nodes import eventually

SECONDS = 20.0


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets; its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with peer:
            try:
                while got := peer.recv(1 << 16):
                    peer.sendall(got)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(SECONDS)


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    with Proxy(echo, seed=7) as made:
        yield made


@contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), SECONDS) as peer:
        yield peer


def words(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def heard(peer: socket.socket, size: int) -> bytes:
    """What comes, until it is so much or the end."""
    got = bytearray()
    while len(got) < size and (piece := peer.recv(size - len(got))):
        got += piece
    return bytes(got)


def through(proxy: Proxy, data: bytes) -> bytes:
    """What comes back of the data over a connection of its own, up to its end."""
    with connected(proxy) as peer:
        sender = threading.Thread(target=_send, args=(peer, data))
        sender.start()
        got = heard(peer, len(data) + 1)
        sender.join(SECONDS)
        return got


def _send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the proxy hung up, as told


def flips(one: bytes, other: bytes) -> list[int]:
    """The bytes in which two runs of equal length differ; each by one bit."""
    assert len(one) == len(other)
    places = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    assert all((one[at] ^ other[at]).bit_count() == 1 for at in places)
    return places


def test_what_is_told_nothing_passes_everything_and_the_end(proxy: Proxy) -> None:
    data = words(3 * MiB + 17)
    assert through(proxy, data) == data
    assert proxy.to_server.passed_bytes == proxy.to_caller.passed_bytes == len(data)
    assert proxy.to_server.flipped == proxy.to_caller.flipped == 0


def test_what_passes_can_be_listened_to_from_when_a_test_asks(proxy: Proxy) -> None:
    before, data = words(KiB), words(200 * KiB)
    through(proxy, before)
    proxy.to_server.heard = bytearray()
    assert through(proxy, data) == data
    assert proxy.to_server.heard == data and proxy.to_caller.heard is None


def test_a_byte_is_flipped_where_it_was_asked_for_and_in_no_other_direction(proxy: Proxy) -> None:
    data = words(200 * KiB)
    proxy.to_caller.faults = Faults(flip_at_byte=100_001)
    assert flips(data, through(proxy, data)) == [100_001]
    assert (proxy.to_caller.flipped, proxy.to_server.flipped) == (1, 0)
    proxy.to_caller.faults, proxy.to_server.faults = Faults(), Faults(flip_at_byte=0)
    assert flips(data, through(proxy, data)) == [0]
    assert (proxy.to_caller.flipped, proxy.to_server.flipped) == (1, 1)


def test_bytes_are_counted_from_when_the_setting_was_made(proxy: Proxy) -> None:
    with connected(proxy) as peer:
        for _ in range(2):
            peer.sendall(bytes(1000))
            assert heard(peer, 1000) == bytes(1000)
        proxy.to_server.faults = Faults(flip_at_byte=10)
        peer.sendall(bytes(1000))
        assert flips(heard(peer, 1000), bytes(1000)) == [10]


def test_bits_flip_at_a_rate_and_the_same_ones_for_the_same_seed(echo: str) -> None:
    data, found = words(256 * KiB), []
    for seed in (1, 1, 2):
        with Proxy(echo, seed=seed) as proxy:
            proxy.to_server.faults = Faults(flip_rate=1e-3)
            found.append(flips(data, through(proxy, data)))
            assert proxy.to_server.flipped == len(found[-1])
    assert found[0] == found[1] != found[2]
    assert all(150 < len(one) < 400 for one in found)  # 262 expected, with sigma 16


def test_exactly_so_many_bytes_pass_and_then_comes_the_end(proxy: Proxy) -> None:
    data = words(300 * KiB)
    proxy.to_caller.faults = Faults(close_after_bytes=123_456)
    assert through(proxy, data) == data[:123_456]
    assert through(proxy, data) == data[:123_456]  # of each connection
    proxy.to_caller.faults = Faults(close_after_bytes=0)
    assert through(proxy, data) == b""
    proxy.to_caller.faults = Faults()
    assert through(proxy, data) == data


def test_a_stalled_direction_passes_nothing_until_it_is_let_go(proxy: Proxy) -> None:
    with connected(proxy) as peer:
        peer.sendall(b"one")
        assert heard(peer, 3) == b"one"
        proxy.to_caller.faults = Faults(stalled=True)
        peer.sendall(b"two")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(3)
        eventually(lambda: proxy.to_server.passed_bytes == 6)  # the other direction goes on
        proxy.to_caller.faults = Faults()
        peer.settimeout(SECONDS)
        assert heard(peer, 3) == b"two"


def test_a_stalled_direction_takes_no_more_than_it_holds(proxy: Proxy) -> None:
    proxy.to_server.faults = Faults(stalled=True)
    with connected(proxy) as peer:
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the senders are held up, as by a reader that sleeps
            peer.sendall(bytes(64 * MiB))


def test_a_delay_makes_bytes_late_and_leaves_their_order_and_number(proxy: Proxy) -> None:
    data = words(1 * MiB)
    proxy.to_server.faults = Faults(delay_seconds=0.2)
    started = time.monotonic()
    assert through(proxy, data) == data
    assert time.monotonic() - started >= 0.2


def test_a_delay_is_no_limit_of_the_rate(proxy: Proxy) -> None:
    """A hundred messages under way at once are late once, not a hundred times."""
    proxy.to_server.faults = Faults(delay_seconds=0.2)
    started = time.monotonic()
    with connected(proxy) as peer:
        for _ in range(100):
            peer.sendall(b"word")
            time.sleep(0.001)
        assert heard(peer, 400) == b"word" * 100
    assert 0.2 <= time.monotonic() - started < 100 * 0.2


def test_a_rate_holds(proxy: Proxy) -> None:
    data = words(256 * KiB)
    proxy.to_caller.faults = Faults(bytes_per_second=512 * KiB)
    started = time.monotonic()
    assert through(proxy, data) == data
    assert time.monotonic() - started >= 0.45


def test_a_reset_breaks_what_is_open_and_nothing_that_comes_after(proxy: Proxy) -> None:
    with connected(proxy) as peer:
        peer.sendall(b"one")
        assert heard(peer, 3) == b"one"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
    assert through(proxy, b"two") == b"two"
    assert proxy.accepted == 2


def test_a_reset_reaches_those_who_do_not_read(proxy: Proxy) -> None:
    with connected(proxy) as peer:
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):  # until everything between us and the echo is full
            peer.sendall(bytes(256 * MiB))
        proxy.reset()
        peer.settimeout(SECONDS)
        with pytest.raises(ConnectionError):
            peer.sendall(bytes(256 * MiB))


def test_a_proxy_that_refuses_hangs_up_at_once(proxy: Proxy) -> None:
    proxy.refusing = True
    with connected(proxy) as peer:
        assert peer.recv(1) == b""
    proxy.refusing = False
    assert through(proxy, b"word") == b"word"


def test_where_nobody_serves_the_caller_is_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with Proxy(f"127.0.0.1:{port}") as proxy, connected(proxy) as peer:
        assert peer.recv(1) == b""


def test_nothing_serves_when_the_proxy_is_gone(echo: str) -> None:
    before = set(threading.enumerate())
    with Proxy(echo) as proxy, connected(proxy) as peer:
        host, _, port = proxy.address.rpartition(":")
        peer.sendall(b"one")
        assert heard(peer, 3) == b"one"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), SECONDS)
    eventually(lambda: set(threading.enumerate()) <= before)
