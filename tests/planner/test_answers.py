"""What a planner is told of a cluster compares like with like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvstore.planner.answers import RATES, answer
from kvstore.planner.cluster import Failure, Role
from kvstore.planner.policies import OURS
from tests.planner.clusters import apart, cluster, same


def test_splits_and_sizes_of_engines_are_told_of_healthy_ones() -> None:
    load = apart(np.arange(40) * 0.25, [2_000] * 40, output=20)
    healthy = cluster(2, 2, ttft_seconds=2.0, tpot_seconds=0.05)
    dying = replace(healthy, failures=(Failure(Role.PREFILL, 1, 1.0), Failure(Role.DECODE, 1, 1.0)))
    found, told = (answer(load, one, OURS, (), 1, int) for one in (dying, healthy))
    assert found.highest < told.highest == found.highest_healthy, "half of it is gone"
    assert found.splits == told.splits and found.parallelism == told.parallelism


def test_a_week_on_a_cluster_that_serves_nobody_in_time_is_answered_at_the_rates_that_can_be() -> (
    None
):
    week = same(57, 3 * 3_600, 2_048)
    found = answer(week, cluster(ttft_seconds=1e-3), OURS, (), 1, int)
    assert found.highest == 0 and found.hits_max == week.describe().hit_rate_max
    rates = [point.rate / week.rate for point in found.curves[0].points]
    assert np.allclose(rates, [rate for rate in RATES if rate > 7 / 23])
