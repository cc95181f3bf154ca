"""Figures of what became of a load."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.planner.outcome import _quartiles


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
