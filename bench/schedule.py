"""How many requests a second one conductor decides, and how soon it does at half the goal's rate.

A thousand nodes list 10 million blocks, in chains of 1,024, and on each node an engine prefills and
decodes. A request is a chain that goes another way from a block of chance on. It is decided as the
conductor decides it: every holder of its prefix, what is on its way, the best split at every engine
that can be the best, who decodes, and the load that this makes for those who come after. Engines
begin and end their prompts as was predicted, in a time that goes on just fast enough to keep
`BUSY` of them busy. What they report is taken in between, and not timed in the first row.

The second row is an open loop at half of what is the goal of the first, so that who decides faster
is not asked more: requests come at random, whether the one before is decided or not, reports are
taken in between, and a request's time is from when it came. The third is the same asked for over
gRPC (`.schedule_calls`).

What a conductor looks at four times a second, it looks at as often here, by the time that goes on.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from bench import schedule_calls
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.engines import Engine
from kvstore.conductor.facts import Facts
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.scheduling import SWEEP_SECONDS
from kvstore.conductor.table import Table
from kvstore.conductor.warm_up import compiled
from kvstore.core.cost import TransferCost
from kvstore.core.fingerprints import IN_DRAM, ON_SSD, Prints
from kvstore.core.hardware import H100, RDMA_200
from kvstore.core.model_shape import LLAMA3_8B
from kvstore.core.priors import decode_prior, kv_room, prefill_prior
from kvstore.errors import Rejected
from kvstore.garbage import keep_what_stands, look_seldom
from kvstore.kernels.prefill_price import BLOCKS as LEADING
from kvstore.kernels.prefill_price import FIRST_TOKEN, READY, WAIT, WORK

RUNS = 10
TAKES = ("blocks",)  # options of the command
BLOCKS = (10_000_000,)
NODES, CHAIN, BLOCK_TOKENS = 1_000, 1_024, 16
DECISIONS, CALLS = 20_000, 3_000  # in one run
BUSY = 0.7
GOAL_RATE, GOAL_P99_MS = 10_000.0, 1.0
WHOSE: Whose = ("default", bytes(32), 0)

Say = Callable[[str], None]


def run(runs: int, say: Say, blocks: Sequence[int] | None = None) -> Report:
    compiled()
    return Report(
        name="schedule",
        unit="decisions/s",
        against=f"{GOAL_RATE:.0f} decisions a second, p99 of {GOAL_P99_MS:.0f} ms at half of that",
        ratio_is="decisions a second / the goal; of p99, the goal / ms",
        goal=1.0,
        sense=Goal.AT_LEAST,
        rows=tuple(row for count in blocks or BLOCKS for row in _rows(count, runs, say)),
    )


def _rows(blocks: int, runs: int, say: Say) -> list[Row]:
    say(f"putting in {blocks} blocks")
    crowd = Crowd(blocks)
    crowd.decide(DECISIONS)  # until as many are busy as will be
    look_seldom()
    keep_what_stands()  # as a conductor does once it serves
    rates = [DECISIONS / sum(crowd.decide(DECISIONS)) for _ in range(runs)]
    rate = float(np.median(rates))
    say(f"{rate:.0f} decisions a second")
    offered = GOAL_RATE / 2
    late = [1e3 * float(np.percentile(crowd.open_loop(offered), 99)) for _ in range(runs)]
    p99 = float(np.median(late))
    say(f"p99 at {offered:.0f} a second {p99:.3f} ms")
    crowd.finish()
    sides = (crowd.scheduler, crowd.table, crowd.names, WHOSE, crowd.now)
    called = schedule_calls.rate(*sides, (CHAIN, BLOCK_TOKENS), CALLS)
    say(f"{called:.0f} a second over gRPC")
    sizes = {"blocks": crowd.listed, "nodes": NODES, "chain_blocks": CHAIN, "decisions": DECISIONS}
    also = {"refused_share": crowd.refused / crowd.decided, "reused_share": crowd.reused_share}
    spread = Spread.of([one / GOAL_RATE for one in rates])
    times = Spread.of([GOAL_P99_MS / one for one in late])
    name = f"{NODES} nodes, {crowd.listed} blocks"
    return [
        Row(f"in process, {name}", sizes, runs, rate, GOAL_RATE, spread.median, spread, also=also),
        Row(
            f"p99 ms at {offered:.0f} a second, {name}",
            sizes,
            runs,
            p99,
            GOAL_P99_MS,
            GOAL_P99_MS / p99,
            times,
        ),
        Row(
            f"over gRPC, {schedule_calls.AT_ONCE} calls at a time, {name}",
            {**sizes, "decisions": CALLS},
            1,
            called,
            GOAL_RATE,
            called / GOAL_RATE,
            counted=False,
        ),
    ]


class Crowd:
    """A scheduler, nodes that list blocks, engines, and requests that end as was predicted."""

    def __init__(self, blocks: int) -> None:
        self._dice = np.random.default_rng(blocks)
        self._chains = self._dice.integers(0, 1 << 64, (max(1, blocks // CHAIN), CHAIN), np.uint64)
        self.table = table = Table(PoolIndex(self._dice.integers(0, 1 << 63).item() | 1))
        self.listed = self._fill(table)
        self.names = [f"node {number}" for number in range(NODES)]
        self.scheduler = Scheduler(table, lambda: self.names, random.Random(blocks))
        self.now, self._events = 1_000.0, list[tuple[float, int, str, Engine]]()
        self._swept = self.now
        self._last: Decision | None = None
        self.decided = self.refused = 0
        self._tokens = self._reused = 0.0
        self._engines = [
            self.scheduler.enter(WHOSE, _facts(number), self.now) for number in range(NODES)
        ]
        self.in_flight = self.scheduler.crew(WHOSE)[1]

    def decide(self, count: int) -> list[float]:
        """Seconds that each of so many decisions took."""
        taken = []
        for ask in [self._ask() for _ in range(count)]:
            self._report()
            began = time.perf_counter()
            self._decide(ask)
            taken.append(time.perf_counter() - began)
            self._settle()
        return taken

    def open_loop(self, rate: float) -> list[float]:
        """Seconds from when each request came until it was decided."""
        asks = [self._ask() for _ in range(DECISIONS)]
        comes = np.cumsum(self._dice.exponential(1 / rate, DECISIONS)).tolist()
        taken, start = [], time.perf_counter()
        for ask, at in zip(asks, comes, strict=True):
            self._report()
            while time.perf_counter() < start + at:
                pass
            self._decide(ask)
            taken.append(time.perf_counter() - start - at)
            self._settle()
        return taken

    def finish(self) -> None:
        """All that was sent ends."""
        self.now = max([self.now, *(at for at, *_ in self._events)])
        self._report()

    @property
    def reused_share(self) -> float:
        """Of prompts' tokens that were not refused."""
        return self._reused / max(1.0, self._tokens)

    def _fill(self, table: Table) -> int:
        """Of half of the chains one node has all; of a quarter another has some leading blocks
        too, and of a quarter two more."""
        lists: list[list[tuple[Prints, int]]] = [[] for _ in range(NODES)]
        for number, chain in enumerate(self._chains):
            some = self._dice.choice(NODES, max(1, number % 4), replace=False).tolist()
            for which, node in enumerate(some):
                count = CHAIN if which == 0 else int(self._dice.integers(1, CHAIN))
                lists[node].append((chain[:count], IN_DRAM | ON_SSD * (which > 0)))
        for node, listed in enumerate(lists):
            table.begin(f"node {node}")
            for prints, tiers in listed:
                table.add(f"node {node}", prints, np.full(len(prints), tiers, np.uint8))
            table.finish(f"node {node}")
        return self._chains.size

    def _ask(self) -> Ask:
        chain = self._chains[self._dice.integers(len(self._chains))]
        beyond = np.arange(CHAIN) >= self._dice.integers(1, CHAIN + 1)
        prints = np.where(beyond, self._dice.integers(0, 1 << 64, CHAIN, np.uint64), chain)
        self.decided += 1
        return Ask(f"request {self.decided}", prints, CHAIN * BLOCK_TOKENS, 0.0)

    def _decide(self, ask: Ask) -> None:
        try:
            self._last = self.scheduler.schedule(WHOSE, ask, self.now)
        except Rejected:
            self._last = None

    def _settle(self) -> None:
        """Have the last decision's prompt begin and end, and let time go on."""
        decision = self._last
        if decision is None:
            self.refused += 1
            return
        engine, row = decision.prefill, decision.row
        assert engine is not None and row is not None
        begins = self.now + max(row[WAIT], row[READY])
        heapq.heappush(self._events, (begins, 0, decision.request, engine))
        ends = self.now + row[FIRST_TOKEN]
        heapq.heappush(self._events, (ends, 1, decision.request, engine))
        self.now += row[WORK] / (BUSY * NODES)
        self._tokens += decision.tokens
        self._reused += min(decision.tokens, row[LEADING] * BLOCK_TOKENS)

    def _report(self) -> None:
        """Engines say what has begun and ended by now, and the conductor looks about it."""
        while self._events and self._events[0][0] <= self.now:
            at, ended, request, engine = heapq.heappop(self._events)
            (self.in_flight.ended if ended else self.in_flight.began)(request, engine, at)
        if self.now >= self._swept + SWEEP_SECONDS:
            self._swept = self.now
            for engine in self._engines:
                engine.heard = self.now
            self.scheduler.sweep(self.now)


def _facts(number: int) -> Facts:
    shape = LLAMA3_8B
    return Facts(
        f"engine {number}",
        "127.0.0.1:1",
        f"node {number}",
        BLOCK_TOKENS,
        float(shape.kv_bytes_per_token),
        kv_room(shape, H100),
        prefill_prior(shape, H100),
        decode_prior(shape, H100),
        RDMA_200.cost,
        TransferCost(1e-4, 6e9),
    )
