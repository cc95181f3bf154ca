"""What is reckoned with where engines of one kind differ, and some of them say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor.kin import SILENT_SECONDS, TOKENS, lean

KIND = np.array([0.01, 1e-4, 1e-9])
EVER = np.inf


def times(*factors: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([factor * KIND for factor in factors])


def leant(factors: list[float], kinds: list[int], silent: list[float]) -> list[float]:
    """By what factor each costs more than `KIND`."""
    found = lean(times(*factors), np.array(kinds), np.array(silent, float))
    assert found == pytest.approx(found[:, :1] / KIND[0] * KIND), "it keeps its proportions"
    return [float(one) for one in found[:, 0] / KIND[0]]


def test_who_speaks_costs_what_it_says() -> None:
    assert leant([1.0, 2.0, 0.3], [0, 0, 0], [0.0, 0.0, 0.0]) == pytest.approx([1.0, 2.0, 0.3])


def test_one_that_has_just_come_costs_what_its_kin_do_and_others_say_nothing_of_it() -> None:
    assert leant([1.0, 0.4, 9.0], [0, 0, 1], [EVER, 0.0, 0.0]) == pytest.approx([0.4, 0.4, 9.0])
    assert leant([1.0, 9.0], [0, 1], [EVER, 0.0]) == pytest.approx([1.0, 9.0])


def test_what_sets_one_apart_fades_while_it_is_silent() -> None:
    first, later, last = (leant([1.7, 1.0], [0, 0], [s, 0.0])[0] for s in (0, SILENT_SECONDS, EVER))
    assert pytest.approx(first) == 1.7 and first > later > last == pytest.approx(1.0)


def test_where_nobody_speaks_all_cost_the_same() -> None:
    assert leant([1.0, 4.0], [5, 5], [EVER, EVER]) == pytest.approx([2.0, 2.0])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 100), st.integers(0, 3), st.floats(0, 1e4)),
        min_size=1,
        max_size=20,
    )
)
def test_nobody_leaves_what_its_kind_costs(engines: list[tuple[float, int, float]]) -> None:
    factors, kinds, silent = map(list, zip(*engines, strict=True))
    for factor, kind, found in zip(factors, kinds, leant(factors, kinds, silent), strict=True):
        kin = [one for one, other, _ in engines if other == kind]
        assert min(kin) * (1 - 1e-9) <= found <= max(kin) * (1 + 1e-9)
        assert found == pytest.approx(factor) or len(set(kin)) > 1


def test_costs_are_compared_by_a_prompt_that_is_neither_short_nor_long() -> None:
    slow_to_begin = np.array([0.5, 1e-4, 1e-9])
    found = lean(np.array([slow_to_begin, KIND]), np.array([0, 0]), np.array([EVER, 0.0]))
    seconds = found @ np.array([1.0, TOKENS, TOKENS**2])
    assert seconds[0] == pytest.approx(seconds[1])
