"""How crowded a fleet is, by what it refused lately."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.crowd import CALM, CROWD, CROWDED, LATELY, LEAST, ended, used


def crowd(refused: float, count: int = 1_000) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """A fleet that lately refused this share of so many."""
    made = np.zeros(1, CROWD)
    for number in range(count):
        ended(made, float(int((number + 1) * refused) > int(number * refused)), 5.0)
    return made


def test_a_fleet_that_refused_nobody_takes_all_of_the_time_it_has() -> None:
    assert used(np.zeros(1, CROWD)) == used(crowd(0.0)) == 1.0


@pytest.mark.parametrize("refused", [0.05, 0.1, 0.2, CALM - 0.01])
def test_what_services_plan_to_refuse_makes_no_crowd(refused: float) -> None:
    assert used(crowd(refused)) == 1.0


@pytest.mark.parametrize("refused", [CROWDED + 0.01, 0.8, 1.0])
def test_where_most_are_refused_lines_are_as_short_as_they_get(refused: float) -> None:
    assert used(crowd(refused)) == LEAST


def test_between_these_each_more_that_is_refused_shortens_them() -> None:
    shares = [used(crowd(one)) for one in np.linspace(CALM, CROWDED, 7)]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 7
    assert used(crowd((CALM + CROWDED) / 2)) == pytest.approx((1 + LEAST) / 2, abs=0.01)


def test_a_few_that_are_refused_are_no_crowd() -> None:
    assert used(crowd(1.0, count=3)) == 1.0


def test_what_was_refused_is_forgotten() -> None:
    made = crowd(1.0)
    for second in range(round(3 * LATELY)):
        for _ in range(1_000 // round(LATELY)):
            ended(made, 0.0, 5.0 + second)
    assert used(made) == 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=50))
def test_the_share_that_is_used_is_one_whatever_the_clock_says(
    ends: list[tuple[float, bool]],
) -> None:
    made = np.zeros(1, CROWD)
    for now, lost in ends:
        ended(made, float(lost), now)
        assert LEAST <= used(made) <= 1.0
        assert 0.0 <= made["lost"] <= made["all"] <= 50.0
