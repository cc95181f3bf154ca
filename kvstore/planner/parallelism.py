"""How many GPUs an engine of either phase is best given, and how many engines that makes.

DistServe's search (OSDI'24, algorithm 1): each phase alone, beside plenty of the other, at every
degree of tensor parallelism that the model can be split by and fits. Of the pairs of degrees that
the same GPUs make, that is taken of which the slower phase bears the most, engines being counted so
that both bear one rate. What they bear together is then simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvstore.core.priors import kv_room, prefill_prior
from kvstore.errors import Invalid
from kvstore.planner.cluster import ENGINES_MAX, Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import Policy
from kvstore.planner.search import Step, highest_rate

DEGREES = (1, 2, 4, 8)  # beyond a host's GPUs, reducing is over a network
PLENTY = 16  # engines of the other phase
CLOSE = 1.05  # degrees differ by more than that, or do not matter


@dataclass(frozen=True, slots=True)
class Phase:
    """One engine at one degree, with plenty of the other phase."""

    role: Role
    tensor_parallel: int
    highest: float  # requests a second

    @property
    def each_gpu(self) -> float:
        return self.highest / self.tensor_parallel


@dataclass(frozen=True, slots=True)
class Parallelism:
    """What was tried of either phase, and what is best made of the same GPUs."""

    tried: tuple[Phase, ...]
    cluster: str  # empty where some phase serves nothing at any degree that there are GPUs for
    highest: float  # requests a second of that


def parallelism(
    load: Load, cluster: Cluster, policy: Policy, seed: int, step: Step
) -> Parallelism | None:
    """For a cluster of one kind of GPU, some for each phase; None for others."""
    pools = {role: [one for one in cluster.pools if one.role is role] for role in Role}
    if len(pools[Role.PREFILL]) != 1 or len(pools[Role.DECODE]) != 1 or pools[Role.MIXED]:
        return None
    if len({pool.gpu for pool in cluster.pools}) != 1:
        return None
    tried = [
        phase
        for role in (Role.PREFILL, Role.DECODE)
        for phase in _phases(load, cluster, role, policy, seed, step)
    ]
    made = _sized(cluster, tried)
    if made is None:
        return Parallelism(tuple(tried), "", 0.0)
    found = highest_rate(load, made, (policy,), seed, close=CLOSE, step=step)
    return Parallelism(tuple(tried), str(made), found.rate if found else 0.0)


def _phases(
    load: Load, cluster: Cluster, role: Role, policy: Policy, seed: int, step: Step
) -> Iterator[Phase]:
    """One engine at each degree that can be, which nobody helps out by taking its role. What one
    bears says where to look for the next."""
    other = cluster.pool(Role.DECODE if role is Role.PREFILL else Role.PREFILL)
    plenty = replace(other, engines=PLENTY, elastic=False)
    start = 1 / PLENTY  # of the load's own rate, a GPU
    for pool in _degrees(cluster, cluster.pool(role)):
        degree = pool.tensor_parallel
        alone = replace(cluster, pools=(replace(pool, elastic=False), plenty))
        found = highest_rate(
            load, alone, (policy,), seed, close=CLOSE, start=start * degree, step=step
        )
        if found:
            start = found.multiplier / degree
        yield Phase(role, degree, found.rate if found else 0.0)


def _degrees(cluster: Cluster, pool: Pool) -> Iterator[Pool]:
    """One engine at each degree that can be."""
    for degree in DEGREES:
        try:
            prefill_prior(cluster.shape, pool.gpu, degree)
            kv_room(cluster.shape, pool.gpu, degree)
        except Invalid:
            continue
        yield replace(pool, engines=1, tensor_parallel=degree)


def _sized(cluster: Cluster, tried: Sequence[Phase]) -> Cluster | None:
    """Of no more GPUs, engines of those degrees for which the slower phase bears the most; no more
    of them than a cluster can have."""
    gpus = sum(pool.engines * pool.tensor_parallel for pool in cluster.pools)
    serving = [one for one in tried if one.highest]
    best, made = (0.0, 0), None
    for first in (one for one in serving if one.role is Role.PREFILL):
        for second in (one for one in serving if one.role is Role.DECODE):
            left = gpus - second.tensor_parallel
            for prefills in range(1, left // first.tensor_parallel + 1):
                taken = prefills * first.tensor_parallel
                decodes = (gpus - taken) // second.tensor_parallel
                if prefills + decodes > ENGINES_MAX:
                    continue
                bears = min(prefills * first.highest, decodes * second.highest)
                spare = gpus - taken - decodes * second.tensor_parallel
                if (bears, spare) > best:
                    best, made = (bears, spare), ((first, prefills), (second, decodes))
    if made is None:
        return None
    pools = (
        replace(cluster.pool(one.role), engines=engines, tensor_parallel=one.tensor_parallel)
        for one, engines in made
    )
    return replace(cluster, pools=tuple(pools))
