"""No policy serves more than the limit says, and a load without reuse comes near it."""

from __future__ import annotations

from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Cluster
from kvstore.planner.limit import rate_limit
from kvstore.planner.load import Load
from kvstore.planner.policies import OURS, named
from kvstore.planner.search import highest_rate
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import MultiTurn
from tests.planner.clusters import cluster


def small(prefill: int) -> Cluster:
    """Short of prefills, with a target that loads last many times longer than."""
    return cluster(prefill, 4, ttft_seconds=2.0)


def share_of_limit(load: Load, engines: Cluster, name: str) -> float:
    limit = rate_limit(load, engines, 1)
    near = 0.8 * limit / load.describe().rate  # is looked at first
    found = highest_rate(load, engines, [named(name)], 1, close=1.02, start=near)
    assert found
    return found.rate / limit


def test_prompts_that_share_nothing_are_served_near_the_limit_and_not_above() -> None:
    """One load's share says little: a rate that is missed by one request is not found."""
    loads = [Bimodal(Arrivals(20, 300)).load(seed) for seed in range(1, 21)]
    shares = [share_of_limit(load, small(2), OURS.name) for load in loads]
    assert max(shares) <= 1.01 and sum(shares) / len(shares) > 0.8


def test_a_cache_that_is_bounded_stays_below_it() -> None:
    load = MultiTurn(Arrivals(20, 300)).load(1)
    assert share_of_limit(load, small(2), "random") < 0.95


def test_to_serve_all_is_harder_than_to_serve_most() -> None:
    load = Bimodal(Arrivals(8, 300)).load(1)
    assert rate_limit(load, small(2), 1, 1.0) < rate_limit(load, small(2), 1, 0.9)
    assert rate_limit(load, small(4), 1) > 1.8 * rate_limit(load, small(2), 1)
