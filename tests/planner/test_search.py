"""The highest rate is the one beyond which too few are in time, and the best policy's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Failure, Role
from kvstore.planner.kinds import KINDS, made
from kvstore.planner.policies import OURS, grid, named
from kvstore.planner.replay import replay
from kvstore.planner.search import CLOSE, at_rate, highest_rate
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import MultiTurn
from kvstore.planner.world import SECONDS_MAX
from tests.planner.clusters import apart, cluster

LOAD = Bimodal(Arrivals(6, 400)).load(1)
CLUSTER = cluster(2, 2, ttft_seconds=10, tpot_seconds=0.1)


@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
def test_enough_are_in_time_there_and_not_much_beyond(start: float) -> None:
    found = highest_rate(LOAD, CLUSTER, [named("least-loaded")], 1, start=start)
    assert found and found.outcome.share >= 0.9
    assert found.outcome == replay(
        at_rate(LOAD, CLUSTER, found.multiplier), CLUSTER, found.policy, 1
    )
    beyond = replay(at_rate(LOAD, CLUSTER, found.multiplier * CLOSE**3), CLUSTER, found.policy, 1)
    assert beyond.share < 0.9
    assert found.rate == pytest.approx(LOAD.describe().rate * found.multiplier, rel=1e-3)


def test_a_load_that_would_be_over_at_once_is_repeated() -> None:
    short = LOAD.window(0, 20)
    found = highest_rate(short, CLUSTER, [OURS], 1)
    long = highest_rate(LOAD, CLUSTER, [OURS], 1)
    assert found and long and found.rate < 2 * long.rate
    assert found.outcome.requests > len(short)


def test_an_engine_that_dies_does_so_however_fast_the_load_comes() -> None:
    """As late as it is, a load that comes faster would be over before."""
    dies = replace(CLUSTER, failures=(Failure(Role.PREFILL, 0, 300.0),))
    bad, good = (highest_rate(LOAD, one, [OURS], 1, close=1.1) for one in (dies, CLUSTER))
    assert bad and good and bad.rate < 0.95 * good.rate


def test_a_load_of_weeks_on_which_an_engine_dies_is_repeated_no_longer_than_can_be_simulated() -> (
    None
):
    weeks = apart([0.0, 0.45 * SECONDS_MAX, 0.9 * SECONDS_MAX], [600] * 3)
    dies = replace(CLUSTER, failures=(Failure(Role.PREFILL, 0, 300.0),))
    for multiplier in (0.95, 1.25, 1.95, 300.0):
        load = at_rate(weeks, dies, multiplier)
        assert load.arrival[-1] <= SECONDS_MAX
        assert load.arrival[-1] > 0.45 * SECONDS_MAX
        replay(load, dies, OURS, 1)


def test_a_guess_at_which_a_load_would_last_longer_than_can_be_simulated_is_none_that_fails() -> (
    None
):
    days = apart([day * 86_400.0 for day in range(4)], [600] * 4)
    soon = cluster(1, 1, ttft_seconds=1.0)
    guessed, found = (highest_rate(days, soon, [OURS], 1, start=one) for one in (1 / 16, 1.0))
    assert guessed and found and guessed.rate == pytest.approx(found.rate, rel=CLOSE**2 - 1)


def test_the_best_of_several_is_at_least_each() -> None:
    """Of prompts that share, and hosts that keep something: else all of these decide alike."""
    load, some = MultiTurn(Arrivals(6, 60)).load(1), grid(named("sglang"))
    keeping = cluster(2, 2, ttft_seconds=2, tpot_seconds=0.1, dram_bytes=2 * 10**10)
    best = highest_rate(load, keeping, some, 1)
    assert best and best.policy in some
    rates = set()
    for one in some:
        alone = highest_rate(load, keeping, [one], 1)
        assert alone and best.multiplier * CLOSE**2 >= alone.multiplier
        rates.add(alone.rate)
    assert len(rates) > 1, "there is no best"


def test_a_target_nobody_can_keep_has_no_rate() -> None:
    hopeless = cluster(2, 2, ttft_seconds=10, tpot_seconds=1e-3)
    assert highest_rate(LOAD, hopeless, [OURS], 1) is None


def test_each_replay_is_told_of() -> None:
    told: list[int] = []
    highest_rate(LOAD, CLUSTER, [named("random")], 1, step=lambda: told.append(1))
    assert 3 < len(told) < 40


@pytest.mark.parametrize("kind", KINDS)
def test_loads_by_name_come_as_fast_as_asked(kind: str) -> None:
    load = made(kind, 20.0, 100.0, 1)
    load.check()
    assert load.describe().rate == pytest.approx(20, rel=0.25)
