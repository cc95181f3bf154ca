"""Peers of the data port that stall, die or ask for too much: what they held is let go."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import psutil
import pytest

from kvstore.layout import SlotLayout
from kvstore.limits import (
    DATA_CALL_BLOCKS_MAX,
    DATA_SESSION_CONNECTIONS_MAX,
    PROBE_BYTES_MAX,
    MiB,
)
from kvstore.transfer.frames import Op, Status
from tests.node.test_data_port import body, numbers, opened, settled
from tests.nodes import (
    LARGE,
    LAYOUT,
    Caller,
    NodeProcess,
    caller,
    eventually,
    node,
    payload,
    prompt,
)
from tests.transfer.raw import Raw

__all__ = ["caller", "node"]


def large(caller: Caller) -> bytes:
    """The handle of a pin on a block of 4 MiB."""
    caller.register(LARGE)
    chain = prompt(next(numbers), 1, LARGE)
    caller.put(chain, spec=LARGE)
    return caller.ask("Open", **caller.about(chain, LARGE)).handles[0]


def test_a_reader_that_stalls_is_hung_up_on_and_its_block_let_go_while_others_are_served(
    node: NodeProcess, caller: Caller
) -> None:
    handle = large(caller)
    whole = SlotLayout.of(LARGE, 0).whole
    with Raw.of(caller) as stalled, Raw.of(caller) as other:
        stalled.call(Op.READ, [handle] * 16, whole)  # 64 MiB, of which it takes none
        assert list(stalled.receive(16)) == [Status.MOVED] * 16
        (small,) = opened(caller)
        began = time.monotonic()
        for _ in range(50):
            assert other.statuses(Op.READ, [small]) == [Status.MOVED]
            other.receive(LAYOUT.root_bytes + LAYOUT.payload_bytes)
        assert time.monotonic() - began < 10.0
        caller.ask("Close", handles=[small])
        eventually(lambda: connections(node, caller) <= 1, 60.0)


def test_a_writer_that_stalls_is_hung_up_on_and_may_try_again(
    node: NodeProcess, caller: Caller
) -> None:
    caller.register(LARGE)
    chain = prompt(next(numbers), 1, LARGE)
    layout = SlotLayout.of(LARGE, 0)
    handles = list(caller.reserve(chain, LARGE).handles)
    with Raw.of(caller) as stalled:
        assert stalled.statuses(Op.WRITE, handles, layout.whole) == [Status.MOVED]
        stalled.socket.sendall(b"x" * 100_000)
        with Raw.of(caller) as second:
            assert second.statuses(Op.WRITE, handles, layout.whole) == [Status.WRITTEN]
        eventually(lambda: connections(node, caller) == 0, 60.0)
    data = payload(chain.hashes[0], LARGE)
    with Raw.of(caller) as second:
        assert second.statuses(Op.WRITE, handles, layout.whole) == [Status.MOVED]
        second.socket.sendall(body(data, layout))
        assert list(second.receive(1)) == [Status.MOVED]
    caller.ask("Seal", handles=handles)
    assert caller.get(chain, LARGE)[1] == [data]


def test_a_peer_that_dies_in_the_middle_lets_go_at_once(node: NodeProcess, caller: Caller) -> None:
    caller.register(LARGE)
    layout = SlotLayout.of(LARGE, 0)
    for _ in range(5):
        reader, writer = Raw.of(caller), Raw.of(caller)
        pin = large(caller)
        reader.call(Op.READ, [pin] * 8, layout.whole)
        handles = list(caller.reserve(prompt(next(numbers), 1, LARGE), LARGE).handles)
        assert writer.statuses(Op.WRITE, handles, layout.whole) == [Status.MOVED]
        writer.socket.sendall(bytes(1_000_000))
        for one in (reader, writer):  # a reset, as of a killed process with bytes unread
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            one.close()
        eventually(lambda: connections(node, caller) == 0)
        caller.ask("Abort", handles=handles)
        caller.ask("Close", handles=[pin])
        assert settled(caller)
    for _ in range(5):  # each needs the room of another: two slots of this size are all there is
        assert caller.put(prompt(next(numbers), 1, LARGE), spec=LARGE) == [0]


def test_a_sessions_end_ends_its_connections(node: NodeProcess, caller: Caller) -> None:
    session = node.caller()
    quiet, busy = Raw.of(session), Raw.of(session)
    session.close()
    eventually(lambda: caller.stats().sessions == 1)
    assert quiet.ended()
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:  # one that is never quiet
        try:
            busy.call(Op.PROBE, [], size=1)
            busy.receive(1)
            busy.socket.sendall(b"x")
            busy.receive(1)
        except (AssertionError, OSError):
            break
    else:
        pytest.fail("a session that is over still moves bytes")
    quiet.close()
    busy.close()


def test_a_call_under_way_ends_with_its_session_however_long_it_would_go_on(
    node: NodeProcess, caller: Caller
) -> None:
    session = node.caller()
    handle, whole = large(session), SlotLayout.of(LARGE, 0).whole
    with Raw.of(session) as reader:
        reader.call(Op.READ, [handle] * DATA_CALL_BLOCKS_MAX, whole)  # 4 GiB, of a quick reader's
        session.close()
        eventually(lambda: caller.stats().sessions == 1)
        deadline = time.monotonic() + 10.0
        with suppress(ConnectionResetError):
            while reader.socket.recv(MiB):
                assert time.monotonic() < deadline, "a session that is over is still served"
                time.sleep(0.02)
    eventually(lambda: connections(node, caller) == 0)


def test_memory_stays_flat_whatever_callers_ask_for(node: NodeProcess, caller: Caller) -> None:
    handle = large(caller)
    whole = SlotLayout.of(LARGE, 0).whole
    caller.put(prompt(next(numbers), 200))
    before = psutil.Process(node.pid).memory_info().rss
    peers = [Raw.of(caller) for _ in range(DATA_SESSION_CONNECTIONS_MAX)]
    for one in peers[:4]:
        one.call(Op.READ, [handle] * DATA_CALL_BLOCKS_MAX, whole)  # 4 GiB, never taken
    for one in peers[4:]:
        one.call(Op.PROBE, [], size=PROBE_BYTES_MAX)
    time.sleep(1.0)
    grown = psutil.Process(node.pid).memory_info().rss - before
    for one in peers:
        one.close()
    assert grown < 48 * MiB, f"{grown / MiB:.0f} MiB more"


def connections(node: NodeProcess, caller: Caller) -> int:
    """Data connections that the node has now."""
    port = int(caller.opened.data_address.rpartition(":")[2])
    found = psutil.Process(node.pid).net_connections("tcp")
    return sum(
        one.status in ("ESTABLISHED", "CLOSE_WAIT") and one.laddr.port == port for one in found
    )
