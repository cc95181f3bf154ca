"""How many GPUs an engine of either phase is best given, and how many engines that makes.

DistServe's search (OSDI'24, algorithm 1): each phase alone, beside plenty of the other, at every
degree of tensor parallelism that the model can be split by and fits; the degree that serves most a
GPU is taken, and engines are counted so that both phases bear one rate. What they bear together is
then simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvstore.core.priors import kv_room, prefill_prior
from kvstore.errors import Invalid
from kvstore.planner.cluster import Cluster, Pool, Role
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
    cluster: str  # empty where some phase serves nothing at any degree
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
    best = [
        max((one for one in tried if one.role is role), key=lambda one: one.each_gpu, default=None)
        for role in (Role.PREFILL, Role.DECODE)
    ]
    if None in best or not all(one and one.highest for one in best):
        return Parallelism(tuple(tried), "", 0.0)
    first, second = (one for one in best if one)
    made = _sized(cluster, first, second)
    found = highest_rate(load, made, (policy,), seed, close=CLOSE, step=step)
    return Parallelism(tuple(tried), str(made), found.rate if found else 0.0)


def _phases(
    load: Load, cluster: Cluster, role: Role, policy: Policy, seed: int, step: Step
) -> Iterator[Phase]:
    """One engine at each degree that can be. What one bears says where to look for the next."""
    other = cluster.pool(Role.DECODE if role is Role.PREFILL else Role.PREFILL)
    start = 1 / PLENTY  # of the load's own rate, a GPU
    for pool in _degrees(cluster, cluster.pool(role)):
        degree = pool.tensor_parallel
        alone = replace(cluster, pools=(pool, replace(other, engines=PLENTY)))
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


def _sized(cluster: Cluster, first: Phase, second: Phase) -> Cluster:
    """Of as many GPUs, engines for which the slower phase bears the most."""
    gpus = sum(pool.engines * pool.tensor_parallel for pool in cluster.pools)
    most = max(1, (gpus - second.tensor_parallel) // first.tensor_parallel)
    counts = []
    for prefills in range(1, most + 1):
        decodes = max(1, (gpus - prefills * first.tensor_parallel) // second.tensor_parallel)
        counts.append((min(prefills * first.highest, decodes * second.highest), prefills, decodes))
    _, prefills, decodes = max(counts)
    return replace(
        cluster,
        pools=(
            replace(
                cluster.pool(Role.PREFILL), engines=prefills, tensor_parallel=first.tensor_parallel
            ),
            replace(
                cluster.pool(Role.DECODE), engines=decodes, tensor_parallel=second.tensor_parallel
            ),
        ),
    )
