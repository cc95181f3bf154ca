"""Whatever callers send, the node's memory stays within its arena and a fixed allowance."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from kvstore.limits import MiB
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults import floods
from tests.faults.floods import Flood
from tests.nodes import LARGE, Caller, NodeProcess, eventually, payload, prompt, running

ARENA, ALLOWED = 64 * MiB, 300 * 10**6
CLIENTS = 64


def peak_under(node: NodeProcess, flood: Flood) -> int:
    """The most memory the node had resident until the flood was over."""
    process, peak = psutil.Process(node.pid), 0
    while flood.on:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.02)
    flood.wait()
    return max(peak, process.memory_info().rss)


def prepared(node: NodeProcess) -> Caller:
    caller = node.caller()
    caller.register()
    caller.register(LARGE)
    caller.put(floods.STORED)
    caller.put(floods.STORED_LARGE, spec=LARGE)
    return caller


def serves(node: NodeProcess) -> None:
    """A new caller can do what callers do, and nothing of the flood is held."""
    caller = eventually(lambda: begun(node))
    try:
        eventually(lambda: not held(caller), 20.0)
    except AssertionError:
        pytest.fail(f"20 s after the flood: {held(caller)}\n{node.log[-4_000:]}")
    for blocks, spec in ((prompt(9, 3), floods.SPEC), (prompt(9, 2, LARGE), LARGE)):
        assert caller.put(blocks, spec=spec) == [pb.PutReply.STORED] * len(blocks)
        assert caller.get(blocks, spec)[1] == [payload(h, spec) for h in blocks.hashes]
    assert caller.counters()["damaged_blocks"] == 0


def held(caller: Caller) -> str:
    """What the node holds for callers; empty for nothing."""
    stats = caller.stats()
    kept = stats.windows or stats.pins
    return f"{stats.windows} windows, {stats.pins} pins, {stats.sessions} sessions" if kept else ""


def begun(node: NodeProcess) -> Caller | None:
    try:
        return node.caller()
    except floods.grpc.RpcError:  # the sessions of the flood have not all ended
        return None


@pytest.mark.parametrize("kind", [floods.largest_messages, floods.stalled_gets])
def test_memory_stays_bounded_under_many_clients(
    kind: Callable[[Flood, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with running(dram="64MiB", slab="8MiB") as node:
        prepared(node)
        flood = Flood(node, 2.5)
        flood.start(CLIENTS, kind)
        peak = peak_under(node, flood)
        with capsys.disabled():
            print(f" [{kind.__name__}: peak {peak / 1e6:.0f} MB]", end="")
        assert peak <= ARENA + ALLOWED
        serves(node)


@pytest.fixture
def files() -> Iterator[int]:
    """As many open files as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_stays_bounded_under_connections_that_are_left_open(
    files: int, capsys: pytest.CaptureFixture[str]
) -> None:
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    with running(dram="64MiB", slab="8MiB") as node, ExitStack() as opened:
        prepared(node)
        host, port = node.address.split(":")
        peak, process = 0, psutil.Process(node.pid)
        for _ in range(min(6_000, files - 500)):
            peer = opened.enter_context(socket.create_connection((host, int(port)), timeout=10))
            peer.sendall(greeting)
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.02)
        with capsys.disabled():
            print(f" [connections: peak {peak / 1e6:.0f} MB]", end="")
        assert peak <= ARENA + ALLOWED
        opened.close()
        serves(node)


def test_memory_stays_bounded_under_everything_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with running(dram="64MiB", slab="8MiB") as node:
        prepared(node)
        flood = Flood(node, 10.0)
        flood.start(24, floods.largest_messages)
        flood.start(16, floods.stalled_puts)
        flood.start(16, floods.stalled_gets)
        for kind in (floods.sessions, floods.pins, floods.specs, floods.garbage):
            flood.start(2, kind)
        peak = peak_under(node, flood)
        with capsys.disabled():
            print(f" [everything: peak {peak / 1e6:.0f} MB]", end="")
        assert peak <= ARENA + ALLOWED
        serves(node)
