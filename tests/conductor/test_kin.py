"""What is reckoned with where engines of one kind say nothing, or not as much as others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor.kin import SILENT_SECONDS, TOKENS, Kin
from kvstore.core.cost import PrefillCost

PRIOR = PrefillCost(0.01, 1e-4, 1e-9)


def times(factor: float) -> PrefillCost:
    return PrefillCost(factor * PRIOR.a, factor * PRIOR.b, factor * PRIOR.c)


class Fleet:
    """Of engines of these kinds, at a time that the test moves."""

    def __init__(self, *kinds: int) -> None:
        self.kin, self.now, self.count = Kin(), 1_000.0, len(kinds)
        self.kin.grow(len(kinds) + 3)
        for row, kind in enumerate(kinds):
            like = kinds.index(kind)
            self.kin.enter(row, PRIOR, like if like < row else None)

    def say(self, **factors: float) -> list[float]:
        """Engines by name, a for row 0; what each is thought to cost then, in PRIORs."""
        for name, factor in factors.items():
            self.kin.learn(ord(name) - ord("a"), times(factor), self.now)
        found = self.kin.costs(np.arange(self.count), self.now)
        each = found[:, 0] / PRIOR.a
        assert found == pytest.approx(each[:, None] * [PRIOR.a, PRIOR.b, PRIOR.c]), "proportions"
        return [float(one) for one in each]


def test_who_speaks_costs_what_it_says() -> None:
    assert Fleet(0, 0, 0).say(a=1.0, b=2.0, c=0.3) == pytest.approx([1.0, 2.0, 0.3])


def test_one_that_has_just_come_costs_what_its_kin_do_and_others_say_nothing_of_it() -> None:
    assert Fleet(0, 0, 1).say(b=0.4) == pytest.approx([0.4, 0.4, 1.0])
    assert Fleet(0).say() == [pytest.approx(1.0)]


def test_one_that_is_silent_follows_its_kin() -> None:
    fleet = Fleet(0, 0)
    fleet.say(a=2.0, b=2.0)
    fleet.now += 0.1
    assert fleet.say(b=1.0) == pytest.approx([1.0, 1.0]), "it was not slow alone"


def test_what_sets_one_apart_is_kept_and_fades_while_it_is_silent() -> None:
    fleet = Fleet(0, 0)
    fleet.say(a=3.0, b=1.0)
    fleet.now += SILENT_SECONDS
    assert fleet.say(b=0.5) == pytest.approx([0.5 * 3 ** (1 / np.e), 0.5])
    fleet.now += 100 * SILENT_SECONDS
    assert fleet.say(b=0.7) == pytest.approx([0.7, 0.7])
    assert fleet.say(a=2.0)[0] == pytest.approx(2.0), "it speaks again"


def test_where_nobody_speaks_nothing_changes() -> None:
    fleet = Fleet(0, 0)
    fleet.say(a=3.0)
    fleet.now += SILENT_SECONDS
    before = fleet.say(b=1.0)
    fleet.now += 1_000.0
    assert fleet.say() == pytest.approx(before)


def test_who_was_silent_for_long_says_nothing_of_others() -> None:
    fleet = Fleet(0, 0)
    fleet.say(a=9.0)
    fleet.now += 1_000.0
    assert fleet.say(b=1.0) == pytest.approx([1.0, 1.0])


def test_a_row_is_begun_anew() -> None:
    fleet = Fleet(0, 0)
    fleet.say(a=9.0, b=1.0)
    fleet.kin.enter(0, PRIOR, None)
    assert fleet.say() == pytest.approx([1.0, 1.0])
    assert fleet.say(b=5.0) == pytest.approx([1.0, 5.0]), "it is of another kind now"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 60), st.integers(0, 3), st.floats(0.1, 10)), max_size=30))
def test_nobody_is_thought_to_cost_what_cannot_be(said: list[tuple[float, int, float]]) -> None:
    fleet = Fleet(0, 0, 0, 1)
    for seconds, row, factor in said:
        fleet.now += seconds
        found = fleet.say(**{"abcd"[row]: factor})
        assert found[row] == pytest.approx(factor)
        assert all(0.1**3 <= one <= 10**3 for one in found)


def test_costs_are_compared_by_a_prompt_that_is_neither_short_nor_long() -> None:
    kin = Kin()
    kin.grow(2)
    kin.enter(0, PrefillCost(0.5, 1e-4, 1e-9), None)
    kin.enter(1, PRIOR, 0)
    kin.learn(1, PRIOR, 0.0)
    seconds = kin.costs(np.arange(2), 0.0) @ [1.0, TOKENS, TOKENS**2]
    assert seconds[0] == pytest.approx(seconds[1])
