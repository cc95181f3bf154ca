"""What is reckoned with where engines of one kind say nothing, or what may be chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor.kin import APART, SHOWN_SECONDS, SILENT_SECONDS, TOKENS, Kin
from kvstore.core.cost import PrefillCost

PRIOR = PrefillCost(0.01, 1e-4, 1e-9)


def times(factor: float) -> PrefillCost:
    return PrefillCost(factor * PRIOR.a, factor * PRIOR.b, factor * PRIOR.c)


class Fleet:
    """Of engines of these kinds, at a time that the test moves. Unless it says otherwise their
    reports do not scatter: what each says is beyond doubt."""

    def __init__(self, *kinds: int, scatter: float = 0.0) -> None:
        self.kin, self.now, self.count = Kin(), 1_000.0, len(kinds)
        self.scatter, self.taken = scatter, 0
        self.kin.grow(len(kinds) + 3)
        for row, kind in enumerate(kinds):
            like = kinds.index(kind)
            self.kin.enter(row, PRIOR, like if like < row else None)

    def say(self, reports: int = 1, **factors: float) -> list[float]:
        """Engines by name, a for row 0; what each is thought to cost then, in PRIORs."""
        self.taken += reports
        for name, factor in factors.items():
            row = ord(name) - ord("a")
            self.kin.learn(row, times(factor), self.taken, self.scatter, self.now)
        found = self.kin.costs(np.arange(self.count), self.now)
        each = found[:, 0] / PRIOR.a
        assert found == pytest.approx(each[:, None] * [PRIOR.a, PRIOR.b, PRIOR.c]), "proportions"
        return [float(one) for one in each]


def test_who_speaks_beyond_doubt_costs_what_it_says() -> None:
    assert Fleet(0, 0, 0).say(a=1.0, b=2.0, c=0.3) == pytest.approx([1.0, 2.0, 0.3])


def test_what_a_few_reports_that_scatter_say_is_mostly_what_they_all_say() -> None:
    few = Fleet(0, 0, scatter=5 * APART).say(a=1.0, b=1.2)
    many = Fleet(0, 0, scatter=5 * APART).say(reports=1_000, a=1.0, b=1.2)
    assert 1.0 < few[0] < few[1] < 1.2, "they come closer, and do not pass each other"
    assert few[1] / few[0] < 1.03
    assert many == pytest.approx([1.0, 1.2], rel=0.01)


@pytest.mark.parametrize("reports", [1, 7, 50])
@pytest.mark.parametrize("scatter", [0.02, 0.1, 0.5])
def test_two_are_apart_by_the_share_that_their_spreads_say(reports: int, scatter: float) -> None:
    found = np.log(Fleet(0, 0, scatter=scatter).say(reports=reports, a=1.0, b=1.2))
    error = (scatter / APART) ** 2 / reports
    kin = 2.0 + error  # the other's own report, and how the two differ
    share = kin / (kin + error)
    assert found[1] - found[0] == pytest.approx((2 * share - 1) * np.log(1.2))


def test_one_alone_costs_what_it_says_however_its_reports_scatter() -> None:
    assert Fleet(0, 1, scatter=0.5).say(a=3.0, b=0.5) == pytest.approx([3.0, 0.5])


def test_one_among_many_is_moved_more_than_they_are() -> None:
    found = Fleet(*[0] * 8, scatter=4 * APART).say(a=1.3, **dict.fromkeys("bcdefgh", 1.0))
    assert 1.0 < found[1] < 1.035 < found[0] < 1.05


def test_reports_of_long_ago_count_for_less() -> None:
    fleet, lately = (Fleet(0, 0, scatter=4 * APART) for _ in range(2))
    assert fleet.say(reports=40, a=1.2, b=1.0) == lately.say(reports=40, a=1.2, b=1.0)
    fleet.now += 10 * SHOWN_SECONDS
    assert fleet.say(a=1.2, b=1.0)[0] < lately.say(a=1.2, b=1.0)[0] - 0.05


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
    kin.learn(1, PRIOR, 1, 0.0, 0.0)
    seconds = kin.costs(np.arange(2), 0.0) @ [1.0, TOKENS, TOKENS**2]
    assert seconds[0] == pytest.approx(seconds[1])
