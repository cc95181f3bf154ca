"""Engines of other sizes are made of the GPUs that there are."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import ENGINES_MAX, Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.parallelism import CLOSE, Phase, _phases, _sized
from kvstore.planner.policies import OURS
from kvstore.planner.synthetic import Bimodal
from tests.planner.clusters import A100, apart, cluster

TRIED = (
    Phase(Role.PREFILL, 1, 28.0),
    Phase(Role.PREFILL, 2, 47.0),
    Phase(Role.DECODE, 1, 13.0),
    Phase(Role.DECODE, 2, 28.0),  # serves more a GPU than one of one does
    Phase(Role.DECODE, 8, 0.0),
)


def sizes(made: Cluster | None) -> list[tuple[int, int]]:
    """Engines, and GPUs of each."""
    return [(one.engines, one.tensor_parallel) for one in made.pools] if made else []


def test_no_more_gpus_are_taken_than_there_are() -> None:
    assert sizes(_sized(cluster(1, 1), TRIED)) == [(1, 1), (1, 1)]
    assert sizes(_sized(cluster(1, 2), TRIED)) == [(1, 1), (1, 2)]
    for prefill in range(1, 9):
        made = sizes(_sized(cluster(prefill, 3), TRIED))
        assert sum(engines * gpus for engines, gpus in made) <= prefill + 3


def test_both_phases_bear_about_as_much() -> None:
    assert sizes(_sized(cluster(3, 3), TRIED)) == [(2, 1), (2, 2)]


def test_where_the_gpus_do_not_do_for_both_nothing_is_made() -> None:
    large = (Phase(Role.PREFILL, 2, 9.0), Phase(Role.DECODE, 1, 9.0))
    assert _sized(cluster(1, 1), large) is None
    assert _sized(cluster(1, 1), TRIED[:2]) is None


def test_no_more_engines_are_made_than_a_cluster_can_have() -> None:
    eights = (Pool(Role.PREFILL, 600, A100, 8), Pool(Role.DECODE, 600, A100, 8))
    small = [Phase(role, 1, 10.0) for role in (Role.PREFILL, Role.DECODE)]
    large = [Phase(role, 8, 40.0) for role in (Role.PREFILL, Role.DECODE)]
    made = sizes(_sized(cluster(pools=eights), [*small, *large]))
    assert 600 < sum(engines for engines, _ in made) <= ENGINES_MAX
    assert len(made) == 2 and sum(engines * gpus for engines, gpus in made) <= 9_600


def test_an_engine_bears_as_much_of_a_trace_of_days_as_of_one_of_minutes() -> None:
    """Of its own rate a share is looked at first, and days last for weeks then."""
    days, soon = apart(np.arange(11) * 25_000.0, [2_000] * 11), cluster(1, 1, ttft_seconds=1.0)

    def tried(load: Load) -> list[float]:
        phases = _phases(load, soon, Role.PREFILL, OURS, 1, lambda: None)
        return [phase.highest for phase in phases]

    few, many = tried(days), tried(days.scaled(1_000.0))
    assert len(few) == 4 and few == pytest.approx(many, rel=2 * (CLOSE - 1))


def test_what_one_engine_bears_is_told_without_those_that_could_take_its_role() -> None:
    load, fixed = Bimodal(Arrivals(4, 30)).load(1), cluster(1, 1, ttft_seconds=3, tpot_seconds=0.1)

    def tried(made: Cluster) -> list[Phase]:
        return [*_phases(load, made, Role.PREFILL, OURS, 1, lambda: None)]

    assert tried(fixed.switching()) == tried(fixed)
