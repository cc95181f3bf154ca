"""A node whose SSD takes a second for every read: what lies there is a miss, and nothing else is.

b ──▶ a, whose disk is slow          b ──▶ c, which is well
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kvstore.block import Chain
from kvstore.wire.v1 import kv_pb2 as pb
from tests.cluster.three import ANSWER_SECONDS, SOON_SECONDS, right
from tests.faults.system_calls import spoilt
from tests.nodes import Caller, NodeProcess, eventually, prompt
from tests.pools import pool


class Slow:
    """Nodes a, b and c; a has been started again, and what it had is on its disk alone."""

    def __init__(self, nodes: dict[str, NodeProcess]) -> None:
        self.all = nodes
        self._prompts = iter(range(1, 1_000_000))
        self.at: dict[str, Caller] = {}
        for name in nodes:
            self.meet(name)

    def meet(self, name: str) -> None:
        self.at[name] = self.all[name].caller()
        self.at[name].register()

    def stored(self, names: str, blocks: int = 1) -> Chain:
        made = prompt(next(self._prompts), blocks)
        for name in names:
            assert self.at[name].put(made) == [pb.PutReply.STORED] * blocks
        return made

    def read(self, name: str, blocks: Chain) -> tuple[int, float]:
        began = time.monotonic()
        return right(self.at[name], blocks), time.monotonic() - began


@pytest.fixture
def slow() -> Iterator[Slow]:
    with pool() as nodes:
        yield Slow({name: nodes.node(name, ssd="64MiB") for name in "abc"})


def test_what_a_slow_disk_has_is_a_miss_in_time_and_costs_nobody_anything_else(slow: Slow) -> None:
    only, both = [slow.stored("a") for _ in range(12)], [slow.stored("ac") for _ in range(4)]
    eventually(lambda: slow.at["a"].counters()["stored_blocks"] == 16, SOON_SECONDS)
    slow.all["a"].kill()
    slow.all["a"].start()
    slow.meet("a")
    eventually(lambda: slow.read("b", slow.stored("a"))[0] == 1, SOON_SECONDS)
    found = 0
    with spoilt(slow.all["a"], "preadv,preadv2", "delay_enter=1000000"):
        for on_disk in only:
            _, seconds = slow.read("b", on_disk)  # raises where it fails
            assert seconds < ANSWER_SECONDS
            # A second time, where an answer came too late on a busy machine.
            found += any(slow.read("b", slow.stored("a"))[0] for _ in range(2))
            assert any(slow.read("b", slow.stored("c"))[0] for _ in range(2))
        assert found >= 10, "what a slow disk's node has in memory is had all the same"
        for blocks in both:
            reads = [slow.read("b", blocks) for _ in range(2)]
            assert any(there for there, _ in reads), "c has it in memory"
            assert all(seconds < ANSWER_SECONDS for _, seconds in reads)
    for blocks in only:
        eventually(lambda blocks=blocks: slow.read("b", blocks)[0] == 1, SOON_SECONDS)
