"""One workload on one cluster, simulated under ours and every rival: figures of `bench goodput`.

Each rival has the gate and is tuned: of its grid the setting with the highest rate counts. What is
looked at beyond the highest rate: far too many requests, a router that is told lies, and prompts by
their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from kvstore.kernels.sim_world import SERVED, World
from kvstore.planner import outcome, presets, trace
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.limit import rate_limit
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import OURS, RIVALS, Policy, grid
from kvstore.planner.replay import SURE, ran, replay
from kvstore.planner.search import Highest, at_rate, highest_rate
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import Agentic, MultiTurn
from kvstore.planner.world import Doubt

GB = 10**9
CONVERSATION = "conversation"  # the trace that is given
# Rate and duration are such that at the rates a cluster can bear the load lasts minutes: many times
# the target of the first token, which a queue may fill before anybody is late.
MADE = {
    "bimodal": lambda seed: Bimodal(Arrivals(40, 900)).load(seed),
    "multi-turn": lambda seed: MultiTurn(Arrivals(50, 500)).load(seed),
    "agentic": lambda seed: Agentic(Arrivals(50, 400)).load(seed),
}
CLUSTERS = {"8+8": (8, 8, 8), "8+4": (8, 4, 4)}  # prefill, decode, GPUs of one that decodes
MEMORY = {"250 GB": 250 * GB, "1 TB": 1_000 * GB}  # DRAM of each host
TTFT_S = 30.0
TPOT_S = (0.3, 0.2, 0.1)  # the loosest first
CLOSE = 1.005  # to this factor a highest rate is known
OVERLOAD = 3.5  # times the highest rate
# Tokens of requests that are far too many count behind so many seconds. Until then a line fills, in
# which a first token may be waited for, and as much is still in it when the last one has come: in a
# run of minutes who keeps the longest line would be ahead by what is in it.
FILLED_SECONDS = 3 * TTFT_S
LIE, DOUBT = -0.3, 0.3
# What a router loses that is told lies is a mean over rates about the highest: that one was chosen
# because nine in ten were in time, and at 1 % less or more there may be two in a hundred fewer.
NEAR = (0.98, 0.99, 1.0, 1.01, 1.02)
_SOON = 1e-9  # seconds: of a load that comes all at once
_FAR = 0.7  # of a target: below it nothing is decided by it


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated; several targets of one, as they share most of it."""

    workload: str
    cluster: str
    memory: str
    seed: int
    trace: Path | None

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.cluster}, {self.memory}"


@dataclass(frozen=True, slots=True)
class Overload:
    """What became of requests at `OVERLOAD`: of all, and of those behind `FILLED_SECONDS`."""

    ttft_s: float  # mean of those that were served
    ttft_filled_s: float
    goodput: float  # tokens in time, a second
    goodput_filled: float


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of it. Rates are requests a second with 90 % in time; shares are of requests."""

    name: str
    tpot_s: float
    same_as_s: float | None  # the looser target at which nothing was decided by either
    seed: int
    rates: dict[str, float]  # of ours and each rival
    limit: float  # that nobody can exceed, see `kvstore.planner.limit`
    tuned: dict[str, tuple[float, ...]]  # each rival's knobs, and whether it foresees
    overload: Overload  # ours
    overload_mooncake: Overload
    lie_cost: float  # share lost about ours' highest rate where all are thought to take less
    doubt_cost: float  # where each is thought to take another time than it does
    lengths: tuple[float, ...]  # by quartile, ours less the best rival's, at ours' highest rate

    @property
    def best_rival(self) -> str:
        return max((name for name in self.rates if name != OURS.name), key=lambda n: self.rates[n])


def cells(setup: Setup) -> list[Cell]:
    """One for each TPOT target."""
    return list(_cells(setup))


def _cells(setup: Setup) -> Iterator[Cell]:
    load, before, fastest = _load(setup), None, 0.0
    for tpot_s in TPOT_S:
        if before is not None and fastest <= _FAR * tpot_s:
            yield replace(before, tpot_s=tpot_s, same_as_s=before.same_as_s or before.tpot_s)
            continue
        before, fastest = _cell(setup, load, _cluster(setup, tpot_s))
        yield before


def _load(setup: Setup) -> Load:
    if setup.workload != CONVERSATION:
        return MADE[setup.workload](setup.seed)
    assert setup.trace, "the conversation is read from a file"
    return trace.read(setup.trace, spread_seed=setup.seed)


def _cluster(setup: Setup, tpot_s: float) -> Cluster:
    prefill, decode, degree = CLUSTERS[setup.cluster]
    card = presets.CARDS["a100"]
    return Cluster(
        presets.MODELS["llama-3-70b"],
        (Pool(Role.PREFILL, prefill, card, 8), Pool(Role.DECODE, decode, card, degree)),
        presets.LINKS["rdma-200"],
        dram_bytes=MEMORY[setup.memory],
        decode_dram_bytes=MEMORY[setup.memory],
        ttft_seconds=TTFT_S,
        tpot_seconds=tpot_s,
    )


def _cell(setup: Setup, load: Load, cluster: Cluster) -> tuple[Cell, float]:
    """And the longest p99 of TPOT that was seen."""
    start, found = 1.0, {}
    for policy in (OURS, *(rival.with_gate() for rival in RIVALS)):
        one = highest_rate(load, cluster, grid(policy), setup.seed, start=start, close=CLOSE)
        if one:
            found[policy.name], start = one, one.multiplier
    ours = found[OURS.name]
    best = max((one for name, one in found.items() if name != OURS.name), key=lambda one: one.rate)
    fifo = found["mooncake"].policy if "mooncake" in found else _gated("mooncake")
    crowded = at_rate(load, cluster, OVERLOAD * ours.multiplier)
    mine, theirs = (ran(crowded, cluster, one, setup.seed) for one in (OURS, fifo))
    same = at_rate(load, cluster, ours.multiplier)
    near = [at_rate(load, cluster, one * ours.multiplier) for one in NEAR]
    sure, lied, doubted = (
        [replay(one, cluster, OURS, setup.seed, doubt) for one in near]
        for doubt in (SURE, Doubt(bias=LIE), Doubt(error=DOUBT))
    )
    rival = replay(same, cluster, best.policy, setup.seed)
    cell = Cell(
        name=f"{setup.name}, {cluster.tpot_seconds * 1e3:.0f} ms",
        tpot_s=cluster.tpot_seconds,
        same_as_s=None,
        seed=setup.seed,
        rates={name: one.rate for name, one in found.items()},
        limit=rate_limit(same, cluster, setup.seed),
        tuned={name: (*one.policy.knobs, one.policy.foresight) for name, one in found.items()},
        overload=overload(mine, FILLED_SECONDS),
        overload_mooncake=overload(theirs, FILLED_SECONDS),
        lie_cost=_share(sure) - _share(lied),
        doubt_cost=_share(sure) - _share(doubted),
        lengths=tuple(a - b for a, b in zip(ours.outcome.quartiles, rival.quartiles, strict=True)),
    )
    crowds = outcome.of(mine), outcome.of(theirs)
    return cell, _slowest(found, (*crowds, rival, *sure, *lied, *doubted))


def overload(world: World, filled_s: float) -> Overload:
    """Of a run of far too many; of a short one its second half counts."""
    requests, good = world.requests, outcome.in_time(world)
    ends = float(requests["arrival"][-1])
    since = min(filled_s, ends / 2)
    late = requests["arrival"] >= since
    tokens = np.where(good, requests["tokens"] + requests["output"], 0)
    return Overload(
        ttft_s=_mean_ttft(requests),
        ttft_filled_s=_mean_ttft(requests[late]),
        goodput=float(tokens.sum()) / max(_SOON, ends),
        goodput_filled=float(tokens[late].sum()) / max(_SOON, ends - since),
    )


def _mean_ttft(requests: Any) -> float:
    served = requests[requests["status"] == SERVED]
    return float(outcome.ttft(served).mean()) if len(served) else float("inf")


def _share(some: list[Outcome]) -> float:
    return fmean(one.share for one in some)


def _gated(name: str) -> Policy:
    return next(one for one in RIVALS if one.name == name).with_gate()


def _slowest(found: dict[str, Highest], others: tuple[Outcome, ...]) -> float:
    every = (*(one.outcome for one in found.values()), *others)
    return max((one.tpot.p99 for one in every if one.tpot), default=float("inf"))
