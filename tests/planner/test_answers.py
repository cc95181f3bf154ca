"""What a planner is told of a cluster compares like with like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvstore.planner.answers import answer
from kvstore.planner.cluster import Failure, Role
from kvstore.planner.policies import OURS
from tests.planner.clusters import apart, cluster


def test_splits_and_sizes_of_engines_are_told_of_healthy_ones() -> None:
    load = apart(np.arange(40) * 0.25, [2_000] * 40, output=20)
    healthy = cluster(2, 2, ttft_seconds=2.0, tpot_seconds=0.05)
    dying = replace(healthy, failures=(Failure(Role.PREFILL, 1, 1.0), Failure(Role.DECODE, 1, 1.0)))
    found, told = (answer(load, one, OURS, (), 1, int) for one in (dying, healthy))
    assert found.highest < told.highest == found.highest_healthy, "half of it is gone"
    assert found.splits == told.splits and found.parallelism == told.parallelism
