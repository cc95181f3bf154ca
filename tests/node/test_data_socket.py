"""The socket that hands out the arena: to sessions only; its end frees what a writer held."""

from __future__ import annotations

import os
import resource
import socket
import stat

import pytest

from kvstore.client.call_sockets import on_this_host
from kvstore.errors import KVStoreError, SessionEnded, Unavailable
from kvstore.limits import SOCKET_CALLS_MAX
from kvstore.memory.arena import HELLO, HELLO_MAGIC
from kvstore.rpc.socket_client import SocketCalls, Stub
from kvstore.transfer.shm import ShmTransport
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import Caller, NodeProcess, eventually, mapped, payload, prompt

SECONDS = 10.0


def knock(node: NodeProcess, token: bytes) -> tuple[bytes, list[int], socket.socket]:
    """What the node answers to a token, and the connection."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(SECONDS)
    peer.connect(os.fspath(node.directory / "node.sock"))
    peer.sendall(token)
    try:
        said, descriptors, _, _ = socket.recv_fds(peer, HELLO.size, 1)
    except ConnectionResetError:  # it hung up without reading all of it
        return b"", [], peer
    return said, descriptors, peer


def test_only_a_live_sessions_token_opens_the_memory(node: NodeProcess, caller: Caller) -> None:
    ended = Caller(node.address)
    ended.close()
    eventually(lambda: caller.stats().sessions == 1)
    tokens = [b"t" * 16, b"t", caller.session, ended.opened.shm_token, os.urandom(5_000)]
    for token in tokens:
        said, descriptors, peer = knock(node, token)
        assert (said, descriptors) == (b"", []), f"{len(token)} bytes opened it"
        peer.close()
    said, descriptors, peer = knock(node, caller.opened.shm_token)
    assert HELLO.unpack(said) == (HELLO_MAGIC, caller.opened.arena_bytes)
    assert os.fstat(descriptors[0]).st_size == caller.opened.arena_bytes
    os.close(descriptors[0])
    peer.close()


def test_who_says_nothing_is_hung_up_on(node: NodeProcess) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(SECONDS)
        peer.connect(os.fspath(node.directory / "node.sock"))
        assert peer.recv(1) == b""


def test_nobody_but_its_user_may_knock(node: NodeProcess) -> None:
    assert stat.S_IMODE((node.directory / "node.sock").stat().st_mode) == 0o600


def test_the_memory_cannot_be_resized_under_the_node(caller: Caller) -> None:
    with mapped(caller) as arena:
        for size in (0, 4096, 2 * arena.size):
            with pytest.raises(OSError):
                os.ftruncate(arena.descriptor, size)
    assert caller.put(prompt(1)) == [0]


def test_a_window_outlives_its_session_until_the_mapping_is_closed(
    node: NodeProcess, caller: Caller
) -> None:
    watcher = Caller(node.address)
    blocks = prompt(1)
    with mapped(caller) as arena:
        window = caller.reserve(blocks)
        caller.stream.cancel()
        eventually(lambda: watcher.stats().sessions == 1)
        assert watcher.stats().windows == 1, "its memory may still be written"
        assert watcher.match(blocks)[0] == 0
        again = watcher.reserve(blocks)
        assert again.slot_offsets[0] != window.slot_offsets[0]
        at = window.slot_offsets[0]
        arena.bytes[at : at + 8192] = 0xEE
        watcher.write(again.handles[0], payload(blocks.hashes[0]))
        watcher.ask("Seal", handles=again.handles)
    eventually(lambda: watcher.stats().windows == 0)
    assert watcher.get(blocks)[1] == [payload(blocks.hashes[0])]
    watcher.close()


def test_the_node_lets_mappers_in_again_after_it_ran_out_of_descriptors(
    node: NodeProcess, caller: Caller
) -> None:
    opened = caller.opened

    def shut_out() -> bool:
        """It may have had a file open for a moment, whose place is free again."""
        files = len(os.listdir(f"/proc/{node.pid}/fd"))
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (files, 20_000))
        try:
            ShmTransport(opened.shm_socket, opened.shm_token, opened.arena_bytes, 0.5).close()
        except KVStoreError:
            return True
        return False

    eventually(shut_out)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (20_000, 20_000))

    def let_in() -> bool:
        try:
            ShmTransport(opened.shm_socket, opened.shm_token, opened.arena_bytes, 2.0).close()
        except Unavailable:
            return False
        return True

    eventually(let_in)


def test_calls_are_answered_on_the_socket_as_long_as_the_session_lives(
    node: NodeProcess, caller: Caller
) -> None:
    caller.register()
    blocks = prompt(1, 3)
    caller.put(blocks)
    session = Caller(node.address)
    path = os.fspath(node.directory / "node.sock")
    calls = SocketCalls(on_this_host(path, session.opened.data_token), node.address)
    stub = Stub(session.kv, calls)
    about = pb.MatchRequest(**caller.about(blocks))
    assert stub.Match(about, timeout=SECONDS).blocks == 3
    taken = [calls.take(SECONDS) for _ in range(SOCKET_CALLS_MAX)]
    assert all(taken)
    more = SocketCalls(on_this_host(path, session.opened.data_token), node.address)
    assert more.take(SECONDS) is None, "a session has so many and no more"
    assert taken[0] is not None
    session.close()
    eventually(lambda: caller.stats().sessions == 1)
    with pytest.raises(SessionEnded):
        calls.call(taken[0], 0, about, SECONDS)
    late = SocketCalls(on_this_host(path, session.opened.data_token), node.address)
    assert late.take(SECONDS) is None, "its token went with it"
    for one in (calls, more, late):
        one.close()
    assert caller.match(blocks)[0] == 3


def test_what_a_session_reads_over_its_sockets_is_its_own_tenants(node: NodeProcess) -> None:
    mine = Caller(node.address)
    mine.register()
    mine.put(prompt(1))
    calls = SocketCalls(
        on_this_host(os.fspath(node.directory / "node.sock"), mine.opened.data_token), node.address
    )
    stub = Stub(mine.kv, calls)
    other = pb.OpenRequest(session=os.urandom(16), **mine.about(prompt(1)))
    with pytest.raises(SessionEnded):
        stub.Open(other, timeout=SECONDS)
    own = pb.OpenRequest(session=mine.session, **mine.about(prompt(1)))
    assert list(stub.Open(own, timeout=SECONDS).outcomes) == [pb.HIT]
    calls.close()
    mine.close()
