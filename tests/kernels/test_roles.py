"""Who is to switch, and who is not: by what a minute asked for and what engines can do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.fleet import NONE, Fleet, prefill_seconds
from kvstore.kernels.roles import (
    ADVICE,
    BALANCED,
    CALM,
    CANNOT,
    CHANGED,
    DECODES,
    GAIN,
    LATELY,
    PREFILLS,
    QUIET,
    SWITCH,
    UNKNOWN,
    WORK,
    advise,
    asked,
    asked_elsewhere,
    look,
)
from tests.kernels.fleets import fleet, wait_behind

TPOT, RESERVE, EVERY = 0.1, 300.0, 10.0


class Crew:
    """Engines that are asked so much a second, and switch as they are advised."""

    def __init__(self, prefills: int, decodes: int, seed: int = 1) -> None:
        self.fleet: Fleet = fleet(prefills + decodes)
        self.engines = self.fleet.engines
        self.engines["prefills"][prefills:], self.engines["decodes"][:prefills] = False, False
        self.engines["switches"], self.engines["tie"] = True, np.arange(prefills + decodes)
        self.works, self.now, self.switched = np.zeros(1, WORK), 1_000.0, 0
        self.work = self.works[0]
        self.dice = np.random.default_rng(seed)

    def asked(self, rate: float, tokens: float, seconds: float, steady: bool = True) -> None:
        end = self.now + seconds
        while (gap := (1.0 if steady else self.dice.exponential()) / rate) <= end - self.now:
            self.now += gap
            size = tokens if steady else max(16.0, tokens * self.dice.lognormal(0.0, 0.5))
            asked(self.works, size, size, self.now)
        self.now = end
        look(self.work, self.engines, TPOT, self.now)

    @property
    def advice(self) -> Any:
        found = np.zeros(1, ADVICE)[0]
        advise(self.engines, self.fleet.lines, self.work, RESERVE, TPOT, self.now, found)
        return found

    @property
    def split(self) -> tuple[int, int]:
        return int(self.engines["prefills"].sum()), int(self.engines["decodes"].sum())

    def obey(self) -> Any:
        """Whoever is named switches at once."""
        advice = self.advice
        if advice["engine"] != NONE:
            row = self.engines[advice["engine"]]
            row["prefills"] = advice["role"] == PREFILLS
            row["decodes"] = advice["role"] == DECODES
            self.work["changed"], self.switched = self.now, self.switched + 1
        return advice


def best(crew: Crew) -> float:
    """The least that the busier phase of alike engines can have, by all splits."""
    advice, (prefills, decodes) = crew.advice, crew.split
    count = prefills + decodes
    work = advice["prefill_load"] * prefills, advice["decode_load"] * decodes
    return min(max(work[0] / one, work[1] / (count - one)) for one in range(1, count))


def test_how_busy_a_phase_is_is_what_is_asked_over_what_its_engines_can_do() -> None:
    crew = Crew(2, 2)
    crew.asked(1.0, 8_000.0, 600.0)
    advice, engine = crew.advice, crew.engines[0]
    seconds = float(prefill_seconds(engine, 8_000.0, 0.0))
    assert advice["prefill_load"] == pytest.approx(seconds / 2, rel=0.02)
    each = 8_000 + RESERVE / 2
    holds = (TPOT - 0.03) / (3e-4 / each + 6e-8)
    room = float(engine["room"])
    assert holds > room, "its room is the shorter"
    step = 0.03 + 3e-4 * room / each + 6e-8 * room
    assert advice["decode_load"] == pytest.approx(RESERVE * each / (2 * room / step), rel=0.02)
    crew.engines["room"] = 10_000_000
    rates = 2 * holds / TPOT
    assert crew.advice["decode_load"] == pytest.approx(RESERVE * each / rates, rel=0.02)


def test_the_busier_phase_is_given_the_one_with_the_least_on_it() -> None:
    crew = Crew(1, 3)
    crew.engines["context"] = 0, 30_000, 10_000, 20_000
    crew.asked(1.0, 8_000.0, 300.0)
    advice = crew.advice
    assert (advice["why"], advice["engine"], advice["role"]) == (SWITCH, 2, PREFILLS)
    assert (advice["prefills"], advice["decodes"]) == (1, 3)
    assert advice["best_prefills"] + advice["best_decodes"] == 4
    assert advice["best_load"] == pytest.approx(best(crew))
    crew.engines["context"], crew.engines["tie"] = 0, (9, 7, 5, 6)
    assert crew.advice["engine"] == 2, "of equals the least"


def test_prompts_that_wait_are_on_an_engine_too() -> None:
    crew = Crew(3, 1)
    crew.engines["context"][3] = 350_000
    for _ in range(20):
        crew.asked(2.0, 300.0, EVERY)
    wait_behind(crew.fleet, 0, 5.0)
    crew.engines["busy_until"][1] = crew.now + 2.0
    advice = crew.advice
    assert (advice["why"], advice["role"], advice["engine"]) == (SWITCH, DECODES, 2)


def test_an_engine_counts_by_its_own_costs() -> None:
    alike, unlike = Crew(2, 2), Crew(2, 2)
    unlike.engines["prefill_b"][0] /= 10
    unlike.engines["prefill_c"][0] /= 10
    unlike.engines["prefill_a"][0] /= 10
    for crew in (alike, unlike):
        crew.asked(1.0, 8_000.0, 300.0)
    loads = alike.advice["prefill_load"], unlike.advice["prefill_load"]
    assert loads[0] == pytest.approx(loads[1] * 11 / 2, rel=1e-3)


def test_one_that_does_both_counts_half_in_each() -> None:
    crew = Crew(2, 2)
    crew.asked(1.0, 8_000.0, 300.0)
    before = crew.advice
    crew.engines["prefills"] = crew.engines["decodes"] = True
    after = crew.advice
    assert (after["prefills"], after["decodes"]) == (4, 4)
    for load in ("prefill_load", "decode_load"):
        assert after[load] == pytest.approx(before[load])


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_nobody_switches_for_little_or_soon_or_unknown_or_where_nobody_can(rate: float) -> None:
    crew = Crew(1, 3)
    crew.asked(rate, 8_000.0, LATELY - 10)
    assert crew.advice["why"] == UNKNOWN
    crew.work["changed"] = crew.now
    assert crew.advice["why"] == CHANGED, "that is known, whatever else is not"
    crew.asked(rate, 8_000.0, 300.0)
    assert crew.advice["why"] == SWITCH
    crew.work["changed"] = crew.now - QUIET + 1
    assert crew.advice["why"] == CHANGED
    crew.work["changed"] = 0.0
    crew.engines["switches"] = False
    advice = crew.advice
    assert advice["why"] == CANNOT and advice["engine"] == NONE
    assert advice["best_prefills"] == 1, "a split that cannot be made is not recommended"


def test_a_fleet_that_hardly_works_and_one_of_which_little_is_known_stay_as_they_are() -> None:
    calm, few = Crew(1, 3), Crew(1, 3)
    calm.asked(3.0, 300.0, 600.0)
    few.asked(0.2, 60_000.0, 600.0)
    assert calm.advice["why"] == CALM
    assert few.advice["why"] == UNKNOWN and few.advice["prefill_load"] > 1.0


def test_what_others_were_asked_for_counts_as_like_what_is_known() -> None:
    alone, beside = Crew(2, 2), Crew(2, 2)
    alone.asked(2.0, 8_000.0, 300.0)
    for _ in range(300):
        beside.asked(1.0, 8_000.0, 1.0)
        asked_elsewhere(beside.works, beside.now)
    for load in ("prefill_load", "decode_load"):
        assert beside.advice[load] == pytest.approx(alone.advice[load], rel=0.02)


def test_what_engines_hold_counts_where_answers_are_longer_than_was_known() -> None:
    crew = Crew(2, 2)
    crew.engines["context"][2], crew.engines["batch"][3] = 300_000, 200
    crew.engines["context"][3] = 100_000
    for _ in range(30):
        crew.asked(1.0, 500.0, 10.0)
    full = (3e-4 * 200 + 6e-8 * 100_000) / (TPOT - 0.03)
    assert crew.advice["decode_load"] == pytest.approx((0.75 + full) / 2, rel=0.03)


def test_a_burst_moves_nobody() -> None:
    crew = Crew(2, 2)
    crew.asked(1.5, 4_000.0, 600.0)
    assert crew.advice["why"] == BALANCED
    for _ in range(10):
        crew.asked(3.0, 8_000.0, 1.0)
        assert crew.advice["engine"] == NONE


SPLITS = st.tuples(st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SPLITS, st.floats(0.4, 30.0), st.floats(50.0, 30_000.0))
def test_constant_load_ends_in_a_good_split_by_no_more_switches_than_it_takes(
    split: tuple[int, int], rate: float, tokens: float
) -> None:
    crew = Crew(*split)
    crew.asked(rate, tokens, 300.0)
    advice, least = crew.advice, best(crew)
    assert advice["best_load"] == pytest.approx(least)
    distance, last = abs(int(advice["best_prefills"]) - split[0]), -np.inf
    for _ in range(100):
        crew.asked(rate, tokens, EVERY)
        advice = crew.obey()
        if advice["engine"] != NONE:
            assert crew.now - last >= QUIET
            last = crew.now
        assert min(crew.split) >= 1, "a phase is left to nobody"
    assert crew.switched <= distance
    now = max(crew.advice["prefill_load"], crew.advice["decode_load"])
    assert now < 0.3 or now <= least / GAIN * 1.01
    assert last <= 1_300.0 + (distance + 1) * (QUIET + EVERY), "it goes on for ever"


@settings(max_examples=20, deadline=None, derandomize=True)
@given(SPLITS, st.integers(0, 1 << 16), st.floats(2.0, 8.0))
def test_a_load_that_stays_the_same_in_the_mean_does_not_have_engines_go_back_and_forth(
    split: tuple[int, int], seed: int, rate: float
) -> None:
    crew, back = Crew(*split, seed=seed), set[int]()
    for _ in range(360):
        crew.asked(rate, 4_000.0, EVERY, steady=False)
        advice = crew.obey()
        if advice["engine"] != NONE:
            back.add(int(advice["role"]))
    assert len(back) <= 1, "both ways in one hour"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_engines_there_are_no_phase_is_left_empty_and_only_who_can_switches(
    data: st.DataObject,
) -> None:
    crew = Crew(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
    for row in crew.engines:
        row["switches"] = data.draw(st.booleans())
        row["context"] = data.draw(st.floats(0, 400_000))
        row["prefill_b"] *= data.draw(st.floats(0.1, 10))
        row["decode_c"] *= data.draw(st.floats(0.1, 10))
        if data.draw(st.booleans()):
            row["prefills"] = row["decodes"] = True
    crew.asked(data.draw(st.floats(0.5, 10)), data.draw(st.floats(50, 30_000)), 120.0)
    advice = crew.advice
    assert advice["best_prefills"] >= 1 and advice["best_decodes"] >= 1
    before = max(advice["prefill_load"], advice["decode_load"])
    assert advice["best_load"] <= before
    if advice["why"] == SWITCH:
        row = crew.engines[advice["engine"]]
        assert row["switches"] and advice["best_load"] <= GAIN * before
        assert row["decodes"] if advice["role"] == PREFILLS else row["prefills"]
        crew.obey()
        assert min(crew.split) >= 1


def test_a_phase_that_nobody_does_is_given_one() -> None:
    crew = Crew(1, 2)
    crew.engines[0]["prefills"] = False  # it has died
    crew.asked(1.0, 4_000.0, 120.0)
    advice = crew.advice
    assert advice["prefill_load"] == np.inf and advice["role"] == PREFILLS
    assert advice["why"] == SWITCH and advice["best_prefills"] == 1


@pytest.mark.parametrize("now", [10.0, 1_000.0, 8_000.0, 1e7])
def test_a_crew_that_was_asked_nothing_is_split_well_as_it_is(now: float) -> None:
    crew = Crew(1, 2)
    crew.now = now
    advice = crew.advice
    assert (advice["best_prefills"], advice["best_decodes"]) == (1, 2)
    assert advice["prefill_load"] == advice["decode_load"] == 0.0


def test_one_prompt_a_moment_ago_is_a_share_of_a_minute_and_no_rush() -> None:
    """Of what came before the first that is known nothing was, and not more of the same."""
    crew = Crew(1, 1)
    crew.asked(1.0, 2_000.0, 1.0)
    seconds = prefill_seconds(crew.engines[0], 2_000.0, 0.0)
    for passed in (0.0, 0.5, 30.0):
        crew.now += passed
        assert crew.advice["prefill_load"] <= 2 * seconds / LATELY
        assert max(crew.advice["prefill_load"], crew.advice["decode_load"]) < 1.0
