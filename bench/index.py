"""What the conductor's index costs, and how many prompts a second it answers for every holder.

Chains of 1,024 blocks, made up from a seed, are put in as nodes would say them. Of half of them one
node has all; of a quarter another has some leading blocks too, and of a quarter two more. A query
is a chain that goes another way from a block of chance on, and its answer is every holder and how
much each has. Queries are timed in one compiled loop on one core. Whoever asks has just made the
fingerprints that it asks with, so each query's are laid out before it, and the time that this takes
alone is measured too, and taken off. Called from Python, one at a time, queries are printed beside
it, as is a prefix that every node has. Memory is the process's own, less what it took when empty.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import psutil
from numba import njit
from numpy.typing import NDArray

from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.conductor.index import PoolIndex, compiled
from kvstore.core.fingerprints import IN_DRAM, ON_SSD
from kvstore.kernels import pool_index as loops

RUNS = 10
LAID_OUT_MIN = 8
TAKES = ("blocks",)  # options of the command
BLOCKS = (10_000_000,)
NODES, CHAIN = 1_000, 1_024
QUERIES, SINGLY = 100_000, 20_000  # in one run
GOAL_QUERIES, GOAL_BYTES = 500_000.0, 24.0
FACTOR = 0x9E3779B97F4A7C15

Say = Callable[[str], None]
Chains = NDArray[np.uint64]


def run(runs: int, say: Say, blocks: Sequence[int] | None = None) -> Report:
    compiled()
    return Report(
        name="index",
        unit="queries/s",
        against=f"{GOAL_QUERIES:.0f} queries a second, {GOAL_BYTES:.0f} bytes a block",
        ratio_is="queries a second / the goal; of memory, the goal / bytes",
        goal=1.0,
        sense=Goal.AT_LEAST,
        rows=tuple(row for count in blocks or BLOCKS for row in _rows(count, runs, say)),
    )


def _rows(blocks: int, runs: int, say: Say) -> list[Row]:
    dice = np.random.default_rng(blocks)
    chains = dice.integers(0, 1 << 64, (max(1, blocks // CHAIN), CHAIN), np.uint64)
    empty = resident_bytes()
    index, holders = PoolIndex(FACTOR), []
    for _ in range(NODES):
        holders.append(index.add())
        index.show(holders[-1])
    say(f"putting in {chains.size} blocks")
    began, pairs = time.perf_counter(), 0
    for number, chain in enumerate(chains):
        for which, node in enumerate(dice.choice(NODES, max(1, number % 4), replace=False)):
            count = CHAIN if which == 0 else int(dice.integers(1, CHAIN))
            tiers = np.full(count, IN_DRAM | ON_SSD * (which > 0), np.uint8)
            index.put_all(holders[node], chain[:count], tiers)
            pairs += count
    put_seconds = time.perf_counter() - began
    resident, held = resident_bytes() - empty, len(index)
    sizes = {"blocks": held, "pairs": pairs, "nodes": NODES, "chain_blocks": CHAIN}
    asked = _Asked.of(chains, dice)
    # What is taken off is the least of several: one that was disturbed would be taken off too.
    laid_out = _seconds(lambda: asked.many(index, 0), max(runs, LAID_OUT_MIN))
    answered = _seconds(lambda: asked.many(index, 1), runs)
    rates = [QUERIES / (both - min(laid_out)) for both in answered]
    found = asked.many(index, 1) / QUERIES
    some = [asked.chain(i) for i in range(SINGLY)]
    singly = [SINGLY / one for one in _seconds(lambda: _singly(index, some), runs)]
    hot = dice.integers(0, 1 << 64, CHAIN, np.uint64)
    for node in holders:
        leading = hot[: int(dice.integers(1, CHAIN + 1))]
        index.put_all(node, leading, np.full(len(leading), IN_DRAM, np.uint8))
    hottest = [1 / one for one in _seconds(lambda: _singly(index, [hot]), runs)]
    assert _singly(index, [hot]) == NODES, "a holder is missing from the answer"
    say(f"{np.median(rates):.0f} queries a second, {resident / held:.1f} bytes a block")
    memory = Row(
        f"bytes a block, {held} blocks",
        sizes,
        1,
        resident / held,
        GOAL_BYTES,
        GOAL_BYTES * held / resident,
        also={
            "bytes_per_block": resident / held,
            "bytes_per_holder": resident / pairs,  # of a block
            "sets": index.sets,
            "put_pairs_per_s": pairs / put_seconds,
        },
    )
    return [
        _row(f"every holder, {held} blocks", sizes, rates, True, found),
        memory,
        _row("the same, a call from Python each", sizes, singly, False, found),
        _row(f"a prefix that all {NODES} nodes have", sizes, hottest, False, NODES),
    ]


def _row(name: str, sizes: Any, rates: list[float], counted: bool, holders: float) -> Row:
    spread = Spread.of([rate / GOAL_QUERIES for rate in rates])
    also = {"holders_per_query": holders}
    rate = float(np.median(rates))
    return Row(
        name, sizes, len(rates), rate, GOAL_QUERIES, spread.median, spread, counted, also=also
    )


def resident_bytes() -> int:
    """Of this process, nothing of it garbage."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Queries: which chain, and from which block on it goes another way."""

    chains: Chains
    which: NDArray[np.int64]
    turns_off: NDArray[np.int64]
    others: NDArray[np.uint64]

    @classmethod
    def of(cls, chains: Chains, dice: np.random.Generator) -> Self:
        which, turns_off = (
            dice.integers(0, len(chains), QUERIES),
            dice.integers(1, CHAIN + 1, QUERIES),
        )
        return cls(chains, which, turns_off, dice.integers(0, 1 << 64, CHAIN, np.uint64))

    def chain(self, number: int) -> NDArray[np.uint64]:
        beyond = np.arange(CHAIN) >= self.turns_off[number]
        return np.where(beyond, self.others, self.chains[self.which[number]])

    def many(self, index: PoolIndex, times: int) -> int:
        """Lay out every query and ask it so often; how many holders the answers name."""
        columns = (self.chains, self.which, self.turns_off, self.others)
        return int(_many(*columns, times, index.asking))


def _seconds(way: Callable[[], int], runs: int) -> list[float]:
    """Of each run."""
    way()
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        way()
        taken.append(time.perf_counter() - began)
    return taken


def _singly(index: PoolIndex, asked: Sequence[NDArray[np.uint64]]) -> int:
    return sum(len(index.longest(chain)[0]) for chain in asked)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _many(chains: Any, which: Any, turns_off: Any, others: Any, times: Any, asking: Any) -> Any:
    found, chain = 0, np.empty(len(others), np.uint64)
    for i in range(len(which)):
        end = turns_off[i]
        chain[:end], chain[end:] = chains[which[i], :end], others[end:]
        for _ in range(times):
            found += loops.longest(chain, *asking)
        found += int(chain[0] == chain[1])  # so that they are laid out in any case
    return found
