"""A cluster over time: what is drawn of it."""

from __future__ import annotations

import numpy as np

from kvstore.planner.policies import OURS
from kvstore.planner.replay import ran
from kvstore.planner.timeline import MOMENTS, timeline
from tests.planner.clusters import apart, cluster


def test_of_few_requests_means_are_taken_over_longer_and_no_line_is_all_gaps() -> None:
    told = timeline(ran(apart(np.arange(24) * 5.0, [2_000] * 24), cluster(), OURS, 1))
    assert len(told.seconds) == len(told.ttft) == len(told.in_time) == MOMENTS
    assert None not in told.ttft and None not in told.in_time


def test_of_one_request_there_is_its_own() -> None:
    world = ran(apart([0.0], [2_000]), cluster(), OURS, 1)
    (told,) = set(timeline(world).ttft)
    assert told == float((world.requests["first_token"] - world.requests["arrival"])[0])


def test_of_many_a_mean_is_of_those_since_the_moment_before() -> None:
    times = np.arange(2_000) * 0.5
    told = timeline(ran(apart(times, [500] * 2_000), cluster(), OURS, 1))
    assert len(set(told.ttft)) > MOMENTS / 2
