"""A client of another host: damage, stalls and deaths cost a miss, and never a wrong byte."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, Miss
from kvstore.errors import KVStoreError, SessionEnded, Unavailable
from kvstore.limits import DATA_SESSION_CONNECTIONS_MAX
from kvstore.transfer import landing, lanes
from kvstore.transfer.frames import WELCOME
from kvstore.transfer.tcp import TcpTransport
from tests.client.kv import Cache, truth_of
from tests.nodes import NodeProcess, eventually, running
from tests.transfer.tcp_rig import (
    DENSE,
    MIXED,
    SPEC,
    TOKENS,
    WAYS,
    client,
    seeds,
    served,
    stats,
    stored,
)

__all__ = ["client", "served"]


class Proxy:
    """Between a client and the data port: hands bytes on, or does what a test says with them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.back_flips: list[int] = []  # of the bytes that go back, counted over connections
        self.there_flips: list[int] = []
        self.cuts: list[int] = []  # likewise: before such a byte goes back, all is cut
        self.bytes_per_second = 0
        self.stalled = threading.Event()
        self._sockets: list[socket.socket] = []
        self._of_sockets = threading.Lock()
        self._counts = {"back": 0, "there": 0}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            there = socket.create_connection(self._to)
            with self._of_sockets:
                self._sockets += [here, there]
            for source, target, way in ((here, there, "there"), (there, here, "back")):
                args = (source, target, way)
                threading.Thread(target=self._carry, args=args, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, way: str) -> None:
        flips = self.back_flips if way == "back" else self.there_flips
        try:
            while data := bytearray(source.recv(16_384)):
                while self.stalled.is_set():
                    time.sleep(0.01)
                if self.bytes_per_second:
                    time.sleep(len(data) / self.bytes_per_second)
                first = self._counts[way]
                if way == "back" and self.cuts and self.cuts[0] < first + len(data):
                    del self.cuts[0]
                    self.cut()
                    return
                self._counts[way] += len(data)
                for at in flips:
                    if first <= at < first + len(data):
                        data[at - first] ^= 0x10
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            one.close()

    def sent_back(self) -> int:
        return self._counts["back"]

    def cut(self) -> None:
        """As when the other process is killed; what connects anew meanwhile is not cut."""
        with self._of_sockets:
            cut, self._sockets = self._sockets, []
        for one in cut:
            with contextlib.suppress(OSError):  # it has ended by itself
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.shutdown(socket.SHUT_RDWR)  # a thread that stands in it would keep it open
            one.close()

    def close(self) -> None:
        self._listening.close()
        self.stalled.clear()
        self.cut()


@pytest.fixture
def proxy(client: Client) -> Iterator[Proxy]:
    """The client's connections, by way of a proxy."""
    link: Any = client.connection.link()
    made = Proxy(link.opened.data_address)
    pass_by(client, made, 20.0)
    yield made
    made.close()


def pass_by(client: Client, proxy: Proxy, deadline_seconds: float) -> None:
    link: Any = client.connection.link()
    link.transport.close()
    link.transport = TcpTransport(
        proxy.address, link.opened.session, link.opened.data_token, deadline_seconds
    )


@WAYS
def test_a_flip_on_the_way_here_is_a_miss_of_that_block(
    client: Client, proxy: Proxy, way: dict[str, Any]
) -> None:
    """Some byte of each kind: the strips, the table, the identity, the last and the first."""
    dice = random.Random(9)
    chain, truth = stored(client)
    whole = 2 * (client.space.layout.root_bytes + client.space.layout.payload_bytes)
    for round_ in range(30):
        target = Cache(SPEC, TOKENS, **way)
        at = dice.choice([0, 100, 191, 192, 287, 288, whole - 1, dice.randrange(whole)])
        proxy.back_flips[:] = [proxy.sent_back() + 2 + at]  # after two statuses
        with client.reader(chain, target.memory(client)) as reader:
            reader.poll()
            assert reader.blocks == (0 if at < whole // 2 else 1), (round_, at)
            assert reader.miss is Miss.DAMAGED
            assert target.holds(truth, 0, reader.tokens)
        proxy.back_flips.clear()
        # The owner looked at its copy and kept it: what was damaged was on the way.
        assert client.match(chain).blocks == 2


@WAYS
def test_a_flip_on_the_way_there_is_never_sealed(
    client: Client, proxy: Proxy, way: dict[str, Any]
) -> None:
    dice = random.Random(10)
    layout = client.space.layout
    block = 8 * layout.strips + layout.payload_bytes
    for _ in range(12):
        seed = next(seeds)
        truth = truth_of(SPEC, TOKENS, seed)
        source = Cache(SPEC, TOKENS, **way)
        source.fill(truth)
        chain = client.chain(range(1_000 * seed, 1_000 * seed + TOKENS))
        with client.writer(chain) as writer:
            call = 36 + 2 * len(writer._handles[0])
            proxy.there_flips[:] = [proxy._counts["there"] + call + dice.randrange(2 * block)]
            with pytest.raises(Unavailable, match="damaged on their way"):
                writer.put(source.memory(client))
            with pytest.raises(KVStoreError):
                writer.seal()
        proxy.there_flips.clear()
        assert client.match(chain).blocks == 0
    assert eventually(lambda: stats(client).windows == 0)


@WAYS
def test_a_node_that_stalls_in_the_middle_is_a_miss_in_time(
    client: Client, proxy: Proxy, way: dict[str, Any]
) -> None:
    chain, truth = stored(client)
    target = Cache(SPEC, TOKENS, **way)
    pass_by(client, proxy, 2.0)
    proxy.stalled.set()
    with client.reader(chain, target.memory(client)) as reader:
        began = time.monotonic()
        assert reader.poll() is True
        assert time.monotonic() - began < 10.0
        assert (reader.blocks, reader.miss) == (0, Miss.UNREACHABLE)
    proxy.stalled.clear()
    again = Cache(SPEC, TOKENS, **way)
    assert client.get(chain, again.memory(client)).blocks == 2, "by a connection of its own"
    assert again.holds(truth)


@WAYS
@pytest.mark.parametrize("cuts", [1, 2])
def test_a_connection_that_is_cut_is_made_again_once_and_then_it_is_a_miss(
    client: Client, proxy: Proxy, way: dict[str, Any], cuts: int
) -> None:
    """Once, since what comes with Open may have lain too long; the next call is served again."""
    chain, truth = stored(client)
    target = Cache(SPEC, TOKENS, **way)
    # Each time a part of the blocks, which are 96 KiB, has come.
    proxy.cuts[:] = [proxy.sent_back() + 30_000 * (1 + i) for i in range(cuts)]
    with client.reader(chain, target.memory(client)) as reader:
        reader.poll()
        assert not proxy.cuts, "the test sees nothing"
        assert reader.miss is (None if cuts == 1 else Miss.UNREACHABLE)
        assert target.holds(truth, 0, reader.tokens)
    assert client.get(chain, target.memory(client)).blocks == 2
    assert target.holds(truth)
    eventually(lambda: stats(client).pins == 0)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_removed_or_evicted_during_a_slow_read_comes_whole_or_is_a_miss(
    seed: int,
) -> None:
    dice = random.Random(seed)
    with (
        running(dram="2MiB", slab="512KiB") as node,
        Client.at(node.address, SPEC, deadline_seconds=20.0, transport="tcp") as client,
        Client.at(node.address, SPEC, deadline_seconds=20.0) as rival,
    ):
        link: Any = client.connection.link()
        proxy = Proxy(link.opened.data_address)
        link.transport.close()
        link.transport = TcpTransport(
            proxy.address, link.opened.session, link.opened.data_token, deadline_seconds=20.0
        )
        chain, truth = stored(client, 8 * 32)
        proxy.bytes_per_second = 1_000_000
        target = Cache(SPEC, 8 * 32, **(DENSE if seed % 2 else MIXED))
        over = threading.Event()

        def disturb() -> None:
            time.sleep(dice.random() * 0.2)
            rival.remove(chain)
            while not over.is_set():  # in the same slots, as far as they are free
                stored(rival, 8 * 32)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            with client.reader(chain, target.memory(client), pin_ms=1) as reader:
                reader.poll()
                assert target.holds(truth, 0, reader.tokens)
                assert reader.miss in (None, Miss.EVICTED)
        finally:
            over.set()
            thread.join(30.0)
        proxy.close()
        eventually(lambda: stats(rival).pins == 0)
        assert stats(rival).counters.get("damaged_blocks", 0) == 0


def test_more_threads_than_connections_take_turns(client: Client) -> None:
    chain, truth = stored(client)
    targets = [Cache(SPEC, TOKENS, **DENSE) for _ in range(3 * DATA_SESSION_CONNECTIONS_MAX)]
    failed: list[str] = []

    def fetch(target: Cache) -> None:
        for _ in range(5):
            found = client.get(chain, target.memory(client))
            if found.blocks != 2 or not target.holds(truth):
                failed.append(str(found))

    threads = [threading.Thread(target=fetch, args=(one,)) for one in targets]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60.0)
    assert not failed


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "filling"])
def test_the_owner_is_asked_again_only_about_what_no_root_proves(
    client: Client, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    look = lanes.Lanes.look

    def counted(self: Any, slots: Any, fragment: Any) -> Any:
        asked.append(len(slots))
        return look(self, slots, fragment)

    cache = Cache(SPEC, TOKENS)
    first = 1_000 * next(seeds)
    chain = client.chain(range(first, first + TOKENS))
    with client.writer(chain, writer_group="g") as writer:
        writer.put(cache.memory(client))
        if sealed:
            writer.seal()
        monkeypatch.setattr(lanes.Lanes, "look", counted)
        with client.reader(chain, Cache(SPEC, TOKENS).memory(client), writer_group="g") as reader:
            reader.poll()
            assert reader.blocks == len(chain)
    assert bool(asked) is not sealed


def test_what_is_no_data_port_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(40)
                peer.sendall(WELCOME.pack(b"SOMEBODY", 0, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(Unavailable, match="no data port"):
            TcpTransport(f"127.0.0.1:{port}", bytes(16), bytes(16), 20.0)
        thread.join(10.0)


@pytest.mark.parametrize("bytes_each", [1, 1 << 30], ids=["several connections", "one"])
def test_a_closed_transport_moves_nothing_and_says_so(
    client: Client, bytes_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_SPREAD_BYTES", bytes_each)
    chain, _ = stored(client)
    transport: Any = client.connection.link().transport
    with client.reader(chain, Cache(SPEC, TOKENS).memory(client)) as reader:
        slots, layout = reader._opened.slots, client.space.layout
        transport.close()
        transport.close()
        with pytest.raises(SessionEnded, match="open the blocks again"):
            transport.current(slots, np.zeros(len(slots), bool))
        into = landing.Landing(
            layout, np.zeros(2 * layout.payload_bytes, np.uint8),
            layout.payload_bytes * np.arange(2), slots.tokens,
        )  # fmt: skip
        with pytest.raises(SessionEnded, match="open the blocks again"):
            transport.pull(layout, slots, layout.whole, into, np.arange(2))


def test_readers_of_a_session_that_the_node_has_ended_miss_what_has_not_come(
    served: NodeProcess, client: Client
) -> None:
    """The first by a connection that the node has hung up, the others by new ones."""
    chain, link = client.chain([next(seeds)] * TOKENS), client.connection.link()
    with (
        Client.at(served.address, SPEC, deadline_seconds=20.0, transport="tcp") as other,
        other.writer(chain, hand_off=True) as writer,
    ):
        memory = Cache(SPEC, TOKENS).memory(client)
        readers = [client.reader(chain, memory, hand_offs=writer.hand_offs) for _ in range(3)]
        assert not any(reader.poll() for reader in readers)
        link._stream.cancel()
        eventually(lambda: stats(other).sessions == 1)
        for reader in readers:
            assert reader.poll()
            assert (reader.blocks, reader.miss) == (0, Miss.UNREACHABLE)


# Tests of the tests: a receiver without its checks is caught by what stands above.


@pytest.mark.parametrize("mechanism", ["root", "strips"])
def test_these_tests_catch_a_receiver_that_does_not_check(
    client: Client, proxy: Proxy, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusts_roots(self: Any, rows: Any, roots: Any) -> Any:
        return np.ones(len(rows), dtype=bool)

    def trusts_strips(self: Any, rows: Any, fragment: Any, roots: Any) -> Any:
        return self.vouched(rows, roots)

    if mechanism == "root":
        monkeypatch.setattr(landing.Landing, "vouched", trusts_roots)
    else:
        monkeypatch.setattr(landing.Landing, "proven", trusts_strips)
    with pytest.raises(AssertionError):
        test_a_flip_on_the_way_here_is_a_miss_of_that_block(client, proxy, DENSE)
