"""Figures of what became of a load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvstore.planner.outcome import _quartiles
from kvstore.planner.policies import OURS
from kvstore.planner.replay import replay
from tests.planner.clusters import apart, cluster


@pytest.mark.parametrize(
    ("good", "quarters"),
    [
        ([0], (0, 0, 0, 0)),
        ([1, 0], (1, 1, 0, 0)),
        ([1, 1, 0], (1, 1, 1, 0)),
        ([1, 1, 1, 0], (1, 1, 1, 0)),
        ([1, 1, 1, 0, 1, 0, 0, 0], (1, 0.5, 0.5, 0)),
    ],
)
def test_the_longest_quarter_of_few_requests_is_of_some(
    good: list[int], quarters: tuple[float, ...]
) -> None:
    tokens = np.arange(len(good), dtype=np.float64)[::-1]
    assert _quartiles(tokens, np.array(good[::-1], np.bool_)) == quarters


def test_an_answer_of_one_token_says_nothing_of_the_pace_of_others() -> None:
    some = apart(np.arange(6) * 10.0, [1_000] * 6, output=100)
    half = replace(some, output_tokens=np.array([100, 1, 1, 1, 1, 100], np.int32))
    told, all_long = (replay(load, cluster(), OURS, 1) for load in (half, some))
    assert told.tpot and all_long.tpot and told.ended["served"] == 6
    assert told.tpot.p50 == pytest.approx(all_long.tpot.p50, rel=0.01)
    one_token = replay(apart([0.0, 10.0], [1_000] * 2, output=1), cluster(), OURS, 1)
    assert one_token.tpot is None and one_token.ttft is not None
