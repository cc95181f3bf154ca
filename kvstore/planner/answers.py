"""What a planner is asked about a load and a cluster, each answered by replays.

What share is served in time and how fast; the highest rate; how the same engines are best split
between prefilling and decoding, or do without a split; how many GPUs each phase's engines are best
given; what more or less DRAM does, and SSD; what rivals would reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kvstore.errors import ConfigError
from kvstore.planner import outcome
from kvstore.planner.cluster import Cluster, Role
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.parallelism import Parallelism, parallelism
from kvstore.planner.policies import Policy
from kvstore.planner.rates import Rates
from kvstore.planner.replay import ran, replay
from kvstore.planner.search import Step, at_rate, highest_rate
from kvstore.planner.timeline import Timeline, timeline
from kvstore.planner.world import SECONDS_MAX

SPLITS_MAX = 9  # that are tried: of many engines, evenly spread ones
MEMORY = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # times the DRAM that there is
SSD = (0.0, 1.0, 4.0, 16.0)  # times that DRAM, of SSD beside it
RATES = (0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0)  # times the highest rate
CHUNKS = (256, 512, 1_024, 2_048)  # tokens, that are tried where each engine does both
SPLIT_CLOSE = 1.05  # splits differ by more than that, or do not matter


@dataclass(frozen=True, slots=True)
class Split:
    """Of the same engines, so many for each."""

    prefill: int
    decode: int
    highest: float  # requests a second, of which enough are in time; 0: none


@dataclass(frozen=True, slots=True)
class Together:
    """The same engines, each of which prefills and decodes, in chunks of the best size."""

    highest: float  # requests a second; 0: none
    chunk_tokens: int
    outcome: Outcome  # at the load's own rate
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Memory:
    """With other DRAM or SSD, at the rate that was asked about."""

    dram_bytes: int
    ssd_bytes: int
    hits: float  # share of prompt tokens that were prefilled
    share: float  # of requests in time
    ttft: float | None  # mean seconds of those served


@dataclass(frozen=True, slots=True)
class Point:
    """At some rate."""

    rate: float  # requests a second
    share: float
    goodput: float  # tokens a second


@dataclass(frozen=True, slots=True)
class Curve:
    """What a policy makes of ever faster loads."""

    policy: str
    highest: float  # requests a second, of which enough are in time; 0: none
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """All of them; `seed` and what was asked bring the same again."""

    cluster: str
    policy: str
    hits_max: float  # share of prompt tokens that a cache which forgets nothing would have had
    outcome: Outcome  # at the load's own rate
    healthy: Outcome | None  # the same, did no engine die; None where none does
    at_highest: Outcome | None  # at the highest rate; None where none is low enough
    highest_healthy: float  # requests a second, did no engine die; 0: none
    rates: Rates  # between which highest ones were looked for
    curves: tuple[Curve, ...]  # the policy's, then each rival's
    splits: tuple[Split, ...]  # by engines that prefill; none where they are of several kinds
    together: Together | None  # None likewise
    parallelism: Parallelism | None  # None where GPUs are of several kinds
    memory: tuple[Memory, ...]  # by DRAM, with the SSD that there is
    ssd: tuple[Memory, ...]  # by SSD; none without DRAM
    timeline: Timeline

    @property
    def highest(self) -> float:
        return self.curves[0].highest

    @property
    def best_split(self) -> Split | None:
        return max(self.splits, key=lambda one: one.highest, default=None)


def answer(
    load: Load, cluster: Cluster, policy: Policy, others: Iterable[Policy], seed: int, step: Step
) -> Answers:
    """`step` is called after each replay. What the same engines would do otherwise is told of
    healthy ones, and compared with these."""
    world = ran(load, cluster, policy, seed)
    step()
    found = highest_rate(load, cluster, (policy,), seed, step=step)
    highest = found.rate if found else 0.0
    sound, healthy, highest_healthy = replace(cluster, failures=()), None, highest
    if cluster.failures:
        healthy = replay(load, sound, policy, seed)
        step()
        best = highest_rate(load, sound, (policy,), seed, step=step)
        highest_healthy = best.rate if best else 0.0
    rates = [times * (highest or _rate(load)) for times in RATES]
    mine = Curve(policy.name, highest, _points(load, cluster, policy, rates, seed, step))
    return Answers(
        cluster=str(cluster),
        policy=policy.name,
        hits_max=load.describe().hit_rate_max,
        outcome=outcome.of(world),
        healthy=healthy,
        at_highest=found.outcome if found else None,
        highest_healthy=highest_healthy,
        rates=Rates.of(load),
        curves=(mine, *(_curve(load, cluster, one, rates, seed, step) for one in others)),
        splits=_splits(load, sound, policy, highest_healthy, seed, step),
        together=_together(load, sound, policy, highest_healthy, seed, step),
        parallelism=parallelism(load, sound, policy, seed, step),
        memory=tuple(
            _memory(load, replace(cluster, dram_bytes=size), policy, seed, step)
            for size in _sizes(cluster.dram_bytes, MEMORY)
        ),
        ssd=tuple(
            _memory(load, replace(cluster, ssd_bytes=size), policy, seed, step)
            for size in (_sizes(cluster.dram_bytes, SSD) if cluster.dram_bytes else ())
        ),
        timeline=timeline(world),
    )


def _multiplier(load: Load, rate: float) -> float:
    return rate / _rate(load)


def _rate(load: Load) -> float:
    """Requests a second. Raises ConfigError where all come at once: no rate can be asked about."""
    rate = load.describe().rate
    if not rate:
        raise ConfigError("all requests of the load come at one time: no rate can be asked about")
    return rate


def _curve(
    load: Load, cluster: Cluster, policy: Policy, rates: list[float], seed: int, step: Step
) -> Curve:
    start = _multiplier(load, rates[RATES.index(1.0)])
    found = highest_rate(load, cluster, (policy,), seed, start=start, step=step)
    highest = found.rate if found else 0.0
    return Curve(policy.name, highest, _points(load, cluster, policy, rates, seed, step))


def _points(
    load: Load, cluster: Cluster, policy: Policy, rates: list[float], seed: int, step: Step
) -> tuple[Point, ...]:
    points = []
    for rate in rates:
        multiplier = _multiplier(load, rate)
        if load.arrival[-1] / multiplier > SECONDS_MAX:
            continue  # so slow, it would last longer than can be simulated
        told = replay(at_rate(load, cluster, multiplier), cluster, policy, seed)
        points.append(Point(rate, told.share, told.goodput))
        step()
    return tuple(points)


def _splits(
    load: Load, cluster: Cluster, policy: Policy, highest: float, seed: int, step: Step
) -> tuple[Split, ...]:
    if not _of_one_kind(cluster):
        return ()
    mine = cluster.engines(Role.PREFILL)
    engines = mine + cluster.engines(Role.DECODE)
    tried = np.linspace(1, engines - 1, min(SPLITS_MAX, engines - 1)).round().astype(int)
    found, start = [], _multiplier(load, highest) if highest else 1.0
    for prefill in sorted({mine, *tried.tolist()}):
        some = highest_rate(
            *(load, cluster.split(prefill), (policy,), seed),
            close=SPLIT_CLOSE,
            start=start,
            step=step,
        )
        # This one is known better.
        best = highest if prefill == mine else some.rate if some else 0.0
        found.append(Split(prefill, engines - prefill, best))
    return tuple(found)


def _together(
    load: Load, cluster: Cluster, policy: Policy, highest: float, seed: int, step: Step
) -> Together | None:
    if not _of_one_kind(cluster):
        return None
    best, chosen = 0.0, CHUNKS[-1]
    for chunk_tokens in CHUNKS:
        found = highest_rate(
            *(load, cluster.together(chunk_tokens), (policy,), seed),
            close=SPLIT_CLOSE,
            start=_multiplier(load, best or highest or _rate(load)),
            step=step,
        )
        if found and found.rate > best:
            best, chosen = found.rate, chunk_tokens
    world = ran(load, cluster.together(chosen), policy, seed)
    step()
    return Together(best, chosen, outcome.of(world), timeline(world))


def _of_one_kind(cluster: Cluster) -> bool:
    """Whether engines can change places: some prefill, the others decode, on equal GPUs."""
    kinds = {(pool.gpu, pool.tensor_parallel) for pool in cluster.pools}
    roles = sorted(pool.role for pool in cluster.pools)
    return len(kinds) == 1 and roles == [Role.DECODE, Role.PREFILL]


def _sizes(size_bytes: int, times: tuple[float, ...]) -> list[int]:
    return sorted({int(size_bytes * one) for one in times})


def _memory(load: Load, cluster: Cluster, policy: Policy, seed: int, step: Step) -> Memory:
    told = replay(load, cluster, policy, seed)
    step()
    mean = told.ttft.mean if told.ttft else None
    return Memory(cluster.dram_bytes, cluster.ssd_bytes, told.hits.all, told.share, mean)
