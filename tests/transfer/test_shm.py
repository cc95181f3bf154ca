"""The shared-memory transport by itself: whom it attaches to, and what it says when it is over."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.errors import SessionEnded, Unavailable
from kvstore.layout import GENERATION_OFFSET
from kvstore.memory.arena import HELLO, HELLO_MAGIC, Arena
from kvstore.transfer.shm import ShmTransport
from kvstore.wire.v1 import admin_pb2
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.stored import Stored
from tests.nodes import NodeProcess, eventually, running, short_directory

SPEC = spec_of("shm")
SIZE = 1 << 20
Answer = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def served() -> Iterator[NodeProcess]:
    with running() as node:
        yield node


@pytest.fixture
def client(served: NodeProcess) -> Iterator[Client]:
    with Client.at(served.address, SPEC, deadline_seconds=20.0) as made:
        yield made


def arenas_held() -> Counter[int]:
    """How many descriptors this process has of each arena, by its inode: what other tests left to
    the garbage collector may go meanwhile."""
    held = Counter[int]()
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if "moonpool-arena" in os.readlink(f"/proc/self/fd/{one}"):
                held[os.stat(f"/proc/self/fd/{one}").st_ino] += 1
    return held


def attached(answer: Answer, deadline_seconds: float = 20.0) -> None:
    """Attach to a socket that answers so."""
    with short_directory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = os.fspath(Path(folder) / "s")
        server.bind(path)
        server.listen(1)
        server.settimeout(10.0)

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                answer(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            ShmTransport(path, bytes(16), SIZE, deadline_seconds)
        finally:
            thread.join(10.0)


def said(peer: socket.socket, text: bytes, arena: Arena) -> None:
    peer.recv(16)
    socket.send_fds(peer, [text], [arena.descriptor])


@pytest.mark.parametrize(
    "text", [HELLO.pack(b"SOMEBODY", SIZE), HELLO.pack(HELLO_MAGIC, SIZE + 1), b"short"]
)
def test_whoever_is_not_a_node_with_that_arena_is_refused(text: bytes) -> None:
    arena = Arena.create(SIZE)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(Unavailable, match="did not hand out an arena"):
        attached(lambda peer: said(peer, text, arena))
    assert sorted(os.listdir("/proc/self/fd")) == before, "what was handed out is closed"
    arena.close()


def test_a_process_that_has_no_descriptor_left_for_the_arena_is_told_so() -> None:
    def answer(peer: socket.socket) -> None:
        peer.recv(16)
        peer.sendall(HELLO.pack(HELLO_MAGIC, SIZE))  # the kernel then hands over the words alone

    with pytest.raises(Unavailable, match="did not hand out an arena"):
        attached(answer)


def test_a_socket_that_hangs_up_or_says_nothing_is_a_node_out_of_reach() -> None:
    with pytest.raises(Unavailable):
        attached(lambda peer: peer.close())

    def silent(peer: socket.socket) -> None:
        peer.settimeout(10.0)
        while peer.recv(64):  # until the caller has had enough
            pass

    with pytest.raises(Unavailable, match=r"cannot be mapped .* timed out"):
        attached(silent, deadline_seconds=0.3)
    with pytest.raises(Unavailable, match="cannot be mapped"):
        ShmTransport("/nonexistent/s", bytes(16), SIZE, 0.3)


def test_a_wrong_token_is_given_nothing(served: NodeProcess) -> None:
    with pytest.raises(Unavailable):
        ShmTransport(os.fspath(served.directory / "node.sock"), bytes(16), 16 << 20, 20.0)


def test_an_arena_that_cannot_be_mapped_is_a_node_out_of_reach_and_nothing_of_it_stays(
    served: NodeProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process has no descriptor or no room for addresses left."""
    before, maps = arenas_held(), mmap.mmap

    def second_is_refused(*arguments: Any) -> mmap.mmap:
        monkeypatch.setattr(mmap, "mmap", refused)
        return maps(*arguments)

    def refused(*_: Any) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    for first in (refused, second_is_refused):
        monkeypatch.setattr(mmap, "mmap", first)
        with pytest.raises(Unavailable, match=r"cannot be mapped .*Cannot allocate memory"):
            Client.at(served.address, SPEC, deadline_seconds=20.0)
    monkeypatch.undo()
    assert not arenas_held() - before
    ask = client.connection
    assert eventually(
        lambda: ask.call(lambda link: link.admin.Stats, admin_pb2.StatsRequest()).sessions == 1
    )


def test_a_closed_transport_moves_nothing_and_says_so(client: Client) -> None:
    chain, source = client.chain(range(16)), Cache(SPEC, 16)
    source.fill(truth_of(SPEC, 16, 1))
    client.put(chain, source.memory(client))
    memory, layout = source.memory(client), client.space.layout
    with client.pin(chain) as pinned:
        transport: Any = client.connection.link().transport
        slots, starts = pinned._slots, np.array([0, 8])
        nothing = np.zeros(len(slots), bool)
        assert transport.verify(layout, slots, layout.whole).all()
        transport.close()
        transport.close()
        for call in (
            lambda: transport.store(layout, slots, memory, starts, layout.whole),
            lambda: transport.load(layout, slots, memory, starts, layout.whole),
            lambda: transport.verify(layout, slots, layout.whole),
            lambda: transport.written(layout, slots, layout.whole),
            lambda: transport.current(slots, nothing),
            lambda: transport.filling(slots),
            lambda: transport.views(layout, slots),
        ):
            with pytest.raises(SessionEnded, match="open the blocks again"):
                call()


def test_a_slot_is_filling_then_sealed_then_free(client: Client, served: NodeProcess) -> None:
    chain, source = client.chain(range(100, 116)), Cache(SPEC, 16)
    transport, layout = client.connection.link().transport, client.space.layout
    writer = client.writer(chain)
    slots = writer._slots
    nothing = np.zeros(len(slots), bool)
    assert transport.filling(slots).all() and transport.current(slots, nothing).all()
    assert list(transport.written(layout, slots, layout.whole)) == [0, 0]
    writer.put(source.memory(client))
    assert list(transport.written(layout, slots, layout.whole)) == [3, 3]
    writer.seal()
    assert not transport.filling(slots).any() and transport.current(slots, nothing).all()
    client.remove(chain)
    assert not transport.filling(slots).any() and not transport.current(slots, nothing).any()


def test_a_slot_is_looked_at_behind_all_that_was_read_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(client)
    transport: Any = client.connection.link().transport
    with client.pin(stored.chain) as pinned:
        slots, nothing = pinned._opened.slots, np.zeros(len(pinned._opened.slots), bool)
        assert transport.current(slots, nothing).all()

        def changed() -> None:
            stored.flip(1, GENERATION_OFFSET)

        with monkeypatch.context() as patch:
            patch.setattr("kvstore.transfer.shm.fence", changed)
            found = transport.current(slots, nothing)
        changed()  # and back
    assert found.tolist() == (slots.offsets != stored.offsets[1]).tolist()
    assert np.count_nonzero(~found) == 1


def test_a_closed_client_leaves_no_descriptor(served: NodeProcess) -> None:
    before = arenas_held()
    with Client.at(served.address, SPEC, deadline_seconds=20.0):
        assert arenas_held() - before
    assert not arenas_held() - before
