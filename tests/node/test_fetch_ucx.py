"""Blocks of one node fetched by another over UCX: whole and right; what does not work is said, and
tcp takes its place.

caller ──▶ node b ──Open, Close──▶ node a          b fetches what a holds; who moved it is counted
              ◀──mover of a: strips──┘
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count

import pytest

from kvstore.block import Chain
from kvstore.node.ucx_way import REST_SECONDS
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import LARGE, SPEC, eventually, payload, prompt
from tests.pools import Nodes, pool
from tests.transfer.ucx_rig import OFFERED, SECONDS, mover_of

pytest.importorskip("nixl_cu12")

numbers = count(1)


class Pair:
    """Node a stores, node b fetches; a caller at each."""

    def __init__(self, nodes: Nodes, at_a: tuple[str, ...], at_b: tuple[str, ...]) -> None:
        self.a = nodes.node("a", dram="64MiB", options=at_a)
        self.b = nodes.node("b", dram="64MiB", options=at_b)
        self.at_a, self.at_b = self.a.caller(), self.b.caller()
        for spec in (SPEC, LARGE):
            self.at_a.register(spec)

    def stored(self, blocks: int = 3, spec=SPEC) -> Chain:
        made = prompt(next(numbers), blocks, spec)
        assert self.at_a.put(made, spec=spec) == [pb.PutReply.STORED] * blocks
        return made

    def fetched(self, blocks: Chain, spec=SPEC) -> None:
        """Node b has all of it, in time, and every byte."""
        hits = [pb.HIT] * len(blocks)
        found = eventually(lambda: (got := self.at_b.get(blocks, spec))[0] == hits and got, SECONDS)
        sizes = zip(blocks.hashes, blocks.tokens, strict=True)
        assert found[1] == [payload(one, spec, tokens) for one, tokens in sizes]

    def moved(self) -> tuple[int, int, int]:
        """Payload bytes put over ucx at a, and had over ucx at b; bytes sent over tcp at a."""
        there, here = self.at_a.counters(), self.at_b.counters()
        return there["ucx_sent_bytes"], here["ucx_fetched_bytes"], there["data_sent_bytes"]

    def by_ucx(self) -> bool:
        """Whether a new block came that way."""
        before = self.moved()
        self.fetched(self.stored(1))
        return self.moved()[1] > before[1]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with pool() as nodes:
        yield Pair(nodes, OFFERED, OFFERED)


def test_where_both_offer_ucx_every_payload_byte_comes_over_it(pair: Pair) -> None:
    eventually(pair.by_ucx, SECONDS)
    before = pair.moved()
    for blocks, spec, size in ((7, SPEC, 512), (6, LARGE, 4 << 20)):
        pair.fetched(pair.stored(blocks, spec), spec)
        # The node that sent the last of it counts that when it has told the other.
        eventually(lambda: pair.moved()[0] - before[0] >= blocks * size, SECONDS)  # noqa: B023
        after = pair.moved()
        sent, had = after[0] - before[0], after[1] - before[1]
        assert (sent, had, after[2]) == (blocks * size, blocks * size, before[2])
        before = after
    assert pair.at_b.counters().get("ucx_failures", 0) == 0


@pytest.mark.parametrize("at_a, at_b", [(OFFERED, ()), ((), OFFERED)])
def test_where_one_does_not_offer_it_blocks_come_over_tcp(
    at_a: tuple[str, ...], at_b: tuple[str, ...]
) -> None:
    with pool() as nodes:
        pair = Pair(nodes, at_a, at_b)
        for _ in range(3):
            pair.fetched(pair.stored())
        sent, had, by_tcp = pair.moved()
        assert (sent, had) == (0, 0) and by_tcp > 0
        assert "ucx" not in pair.b.log


def test_a_killed_mover_costs_no_block_and_ucx_comes_back(pair: Pair) -> None:
    eventually(pair.by_ucx, SECONDS)
    mover_of(pair.a).kill()
    by_tcp = pair.moved()[2]
    pair.fetched(pair.stored(5))
    assert pair.moved()[2] > by_tcp, "what ucx did not bring, tcp did"
    assert pair.at_b.counters()["ucx_failures"] == 1
    assert f"node {pair.a.address}: ucx was tried for its blocks and did not work" in pair.b.log
    eventually(pair.by_ucx, SECONDS + REST_SECONDS)


def test_a_mover_that_hangs_costs_no_block(pair: Pair) -> None:
    eventually(pair.by_ucx, SECONDS)
    mover = mover_of(pair.a)
    mover.send_signal(signal.SIGSTOP)
    try:
        pair.fetched(pair.stored(5))
        pair.fetched(pair.stored(5))
    finally:
        mover.send_signal(signal.SIGCONT)
    assert pair.at_b.counters()["ucx_failures"] >= 1
    eventually(pair.by_ucx, SECONDS + REST_SECONDS)


def test_a_holder_that_died_is_a_miss_and_the_reader_serves_on(pair: Pair) -> None:
    eventually(pair.by_ucx, SECONDS)
    blocks = pair.stored(6, LARGE)
    pair.a.kill()
    outcomes, _ = pair.at_b.get(blocks, LARGE)
    assert pb.HIT not in outcomes
    mine = prompt(next(numbers), 2)
    pair.at_b.put(mine)
    assert pair.at_b.get(mine)[0] == [pb.HIT] * 2
    assert "Traceback" not in pair.b.log
