"""kill -9 at every place on a block's way, and at random ones: what was acknowledged is there."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from kvstore.failpoint import POINTS, VARIABLE
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.workers import Workers
from tests.nodes import Caller, NodeProcess, eventually, payload, prompt, short_directory

SERVES_SECONDS = 20.0  # far more than it takes on a machine that does nothing else
# Which passing is the last: late enough for blocks to be in both tiers.
PASSES = {
    "seal.before_index": 460,
    "seal.after_index": 560,
    "write_back.before_write": 7,
    "write_back.before_sync": 8,
    "write_back.before_commit": 9,
    "write_back.before_ack": 10,
    "commit.before_deletes": 4,
    "commit.inside": 4,
    "evict.after_drop": 10,
    "promotion.before_read": 20,
    "promotion.after_read": 40,
    "remove.before_flush": 4,
    "remove.before_answer": 4,
}
STARTING = {"recovery.between_records": 100, "recovery.before_serving": 1}
STOPPING = {"shutdown.before_drain": 1, "shutdown.before_close": 1}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """DRAM for 256 blocks, SSD for 8,192. It is not started."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with short_directory() as directory:
        made = NodeProcess(directory, dram="2MiB", slab="256KiB", ssd="64MiB")
        try:
            yield made
        finally:
            made.close()


def armed(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, point: str, count: int
) -> NodeProcess:
    """The node, started to die at a place."""
    monkeypatch.setenv(VARIABLE, f"{point}:exit@{count}")
    node.start()
    monkeypatch.delenv(VARIABLE)
    return node


def dies(node: NodeProcess) -> None:
    assert node.wait(120) == -signal.SIGKILL, node.log[-2_000:]


def comes_back(node: NodeProcess, workers: Workers) -> None:
    """The node is started again, serves soon, and has what it must have."""
    workers.close()  # no thread is in gRPC while a process is made
    began = time.monotonic()
    node.start()
    caller = node.caller()
    blocks = prompt(1, 3)
    assert caller.put(blocks) == [pb.PutReply.STORED] * 3
    assert caller.get(blocks) == ([pb.HIT] * 3, [payload(name) for name in blocks.hashes])
    assert time.monotonic() - began < SERVES_SECONDS
    offered, there = workers.check(node)
    assert offered > 100 and there > 0, "the test sees nothing"
    eventually(lambda: caller.stats().pins == caller.stats().windows == 0)
    assert caller.counters()["damaged_blocks"] == 0


def test_every_place_is_tried() -> None:
    assert PASSES.keys() | STARTING.keys() | STOPPING.keys() == POINTS.keys()


@pytest.mark.parametrize("point", PASSES)
def test_a_node_that_dies_there_has_what_it_acknowledged(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    armed(node, monkeypatch, point, PASSES[point])
    workers = Workers(node, seed=1)
    dies(node)
    workers.wait()
    comes_back(node, workers)


@pytest.mark.parametrize("point", STARTING)
def test_a_node_that_dies_while_it_starts_finds_all_the_next_time(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    workers = Workers(node.start(), seed=2)
    with closing(Caller(node.address)) as caller:  # some that are stored are removed again
        eventually(lambda: caller.counters()["stored_blocks"] >= 4 * max(STARTING.values()))
    node.kill()
    workers.wait()
    for _ in range(2):
        monkeypatch.setenv(VARIABLE, f"{point}:exit@{STARTING[point]}")
        with pytest.raises(Exception, match="did not start"):
            node.start()
        dies(node)
    monkeypatch.delenv(VARIABLE)
    comes_back(node, workers)


@pytest.mark.parametrize("point", STOPPING)
def test_a_node_that_dies_while_it_stops_has_what_it_acknowledged(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    armed(node, monkeypatch, point, STOPPING[point])
    workers = Workers(node, seed=3)
    time.sleep(1.0)
    node.signal(signal.SIGTERM)
    dies(node)
    workers.wait()
    comes_back(node, workers)


@pytest.mark.parametrize("seed", range(10))
def test_a_node_killed_at_any_moment_has_what_it_acknowledged(node: NodeProcess, seed: int) -> None:
    workers = Workers(node.start(), seed)
    time.sleep(random.Random(seed).uniform(0.3, 1.5))
    node.kill()
    workers.wait()
    comes_back(node, workers)
