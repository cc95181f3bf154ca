"""Between which rates the highest is looked for, and what is said where it lies at an end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvstore.cli import plan_simulate
from kvstore.planner.answers import Answers, answer
from kvstore.planner.policies import OURS
from kvstore.planner.rates import RATE_MAX, TIMES_MAX, Rates, number
from kvstore.planner.reasons import why
from kvstore.planner.search import CLOSE, highest_rate
from tests.planner.clusters import apart, cluster, same

SELDOM = apart(np.arange(10) * 5_000.0, [2_000] * 10, output=20)
SOON = cluster(1, 1, ttft_seconds=1.0)


def at_the_end(found: Answers) -> Answers:
    """As if all that was tried of it were borne."""
    most = found.rates.most
    curves = tuple(replace(one, highest=most) for one in found.curves)
    splits = tuple(replace(one, highest=most) for one in found.splits)
    return replace(found, curves=curves, splits=splits, highest_healthy=most)


@pytest.fixture(scope="module")
def answers() -> Answers:
    load = apart(np.arange(10) * 0.5, [2_000] * 10, output=20)
    engines = cluster(2, 1, ttft_seconds=1.0, tpot_seconds=0.05)
    return answer(load, engines, OURS, (OURS,), 1, int)


def test_requests_that_came_seldom_are_borne_as_fast_as_if_they_had_come_often() -> None:
    often = highest_rate(SELDOM.scaled(5_000.0), SOON, [OURS], 1)
    seldom = highest_rate(SELDOM, SOON, [OURS], 1)
    assert often and seldom and seldom.rate > TIMES_MAX * SELDOM.rate
    assert seldom.rate == pytest.approx(often.rate, rel=CLOSE**2 - 1)


def test_nothing_is_tried_above_the_most_and_what_is_borne_there_may_be_more() -> None:
    patient = cluster(1, 1, ttft_seconds=80_000.0)  # all that a load is repeated to is in time
    few = apart([0.0, 1e-3], [600] * 2, output=1)
    found = highest_rate(few, patient, [OURS], 1, start=1_000.0)
    rates = Rates.of(few)
    assert rates.most == TIMES_MAX * few.rate > RATE_MAX
    assert found and rates.ends_at(found.rate) and found.rate < rates.most * 1.001
    assert rates.text(found.rate) == "1024000.00 or more" and rates.text(3.0) == "3.00"


def test_nothing_is_concluded_from_rates_that_are_no_more_than_what_was_tried(
    answers: Answers,
) -> None:
    said = why(answers)
    assert "times as fast. Beyond that," in said and "No other split" in said
    assert "Of the other policies" in said and "or more" not in said
    ended = at_the_end(answers)
    said = why(ended)
    assert "times as fast or more." in said and "Beyond that" not in said
    assert "No other split" not in said and "Split " not in said
    assert "Of the other policies" not in said
    both = replace(answers.together, highest=answers.rates.most) if answers.together else None
    said = why(replace(ended, together=both))
    assert "isaggregat" not in said, "who is better is not known"


def test_what_is_better_than_all_that_is_known_is_told_with_or_more(answers: Answers) -> None:
    assert answers.together
    most = answers.rates.most
    said = why(replace(answers, together=replace(answers.together, highest=most)))
    assert f"they take {most:.2f} or more requests a second, more than under any split" in said


def test_no_split_is_called_the_best_of_those_that_bear_all_that_was_tried(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_simulate.tell(answers, SOON)
    assert "   best" in capsys.readouterr().out
    plan_simulate.tell(at_the_end(answers), SOON)
    said = capsys.readouterr().out
    assert "   best" not in said and f"{answers.rates.most:.2f} requests/s or more" in said


def test_slow_rates_are_written_with_digits_that_say_something() -> None:
    assert [number(one) for one in (0.0, 0.00117, 0.0999, 0.1, 27.4)] == [
        *("0.00", "0.00117", "0.0999", "0.10", "27.40")
    ]
    assert plan_simulate._rate(0.00117, Rates.of(SELDOM)) == " 0.00117 requests/s"


def test_the_reasons_write_slow_rates_so(answers: Answers) -> None:
    slow = replace(answers, outcome=replace(answers.outcome, rate=0.00117))
    assert "There is enough at 0.00117 requests a second" in why(slow)


def test_where_no_slower_rate_can_be_simulated_than_those_that_are_not_borne_that_is_said(
    answers: Answers,
) -> None:
    week = Rates.of(same(57, 3 * 3_600, 2_048))
    slowest = "none from 2.8e-05 on, the slowest that can be simulated"
    assert plan_simulate._rate(0.0, week).strip() == slowest
    assert plan_simulate._rate(0.0, answers.rates).strip() == "none is low enough"
    none = (replace(answers.curves[0], highest=0.0),)
    assert "none at all could be borne" in why(replace(answers, curves=none, at_highest=None))
    of_a_week = replace(answers, curves=none, at_highest=None, rates=week)
    assert "none that can be simulated could be borne" in why(of_a_week)
