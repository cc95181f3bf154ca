"""Arrivals come at the rate and as bursty as asked for, and a rounded trace is smoothed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import ConfigError
from kvstore.planner.arrivals import Arrivals, generator, spread
from tests.planner.loads import PROVEN, Told, load_of, told


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 3.0])
def test_rate_and_burstiness_are_as_asked(burstiness: float) -> None:
    times = Arrivals(20, 5_000, burstiness).draw(generator(1))
    assert times[0] >= 0 and times[-1] < 5_000
    gaps = np.diff(times)
    assert gaps.min() >= 0
    # Six standard deviations of what so many draws give.
    assert len(times) == pytest.approx(100_000, rel=6 * burstiness / 100_000**0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.05)


def test_a_poisson_process_has_as_many_in_a_second_as_chance_would() -> None:
    times = Arrivals(20, 5_000).draw(generator(2))
    counts = np.bincount(times.astype(int), minlength=5_000)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


def test_the_seed_decides() -> None:
    arrivals = Arrivals()
    same = [arrivals.draw(generator(7)) for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], arrivals.draw(generator(8)))


@pytest.mark.parametrize(
    "field, values",
    {
        "rate": [0, -1, np.nan, np.inf, "10", True, 1e9],
        "duration_s": [0, -1, np.nan, np.inf, 1e12],
        "burstiness": [0, -1, np.nan, 1e3],
    }.items(),
)
def test_a_setting_that_cannot_be_is_named(field: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"arrivals\.{field} = .*: wants a number"):
            Arrivals(**{field: value})


def test_more_requests_than_can_be_held_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(ConfigError, match=r"duration_s = 1e\+06: .* more than 33,554,432 requests"):
        Arrivals(rate=1e4, duration_s=1e6)


def test_a_load_without_a_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="no request came in that time"):
        Arrivals(rate=1e-6, duration_s=1).draw(generator(1))


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed = "):
        generator(seed)


@PROVEN
@given(told(), st.integers(0, 99))
def test_spreading_keeps_the_order_and_moves_nobody_out_of_its_slot(case: Told, seed: int) -> None:
    smooth = spread(case.load, seed)
    smooth.check()
    assert replace(smooth, arrival=case.load.arrival) == case.load
    begin = np.unique(case.load.arrival)
    if len(begin) == 1:
        assert smooth == case.load
        return
    shift = smooth.arrival - case.load.arrival
    usual_s = np.median(np.diff(begin))
    slack = 1e-9 * begin[-1]  # of a float that large
    # All are earlier by what the first was moved, which is at most a slot.
    assert shift.min() >= -usual_s - slack and shift.max() <= usual_s + slack


def test_a_slot_is_no_longer_where_the_next_ones_are_missing() -> None:
    arrival = np.repeat([0.0, 3.0, 6.0, 9.0, 60.0], 200)
    load = load_of([(1,)] * 1_000, arrival.tolist())
    smooth = spread(load, seed=1)
    before = smooth.arrival[smooth.arrival < 30]
    assert len(before) == 800 and before[-1] == pytest.approx(12, abs=0.1)
    assert np.ptp(smooth.arrival[800:]) == pytest.approx(3, abs=0.1)
    assert np.diff(before).max() < 0.2


def test_who_has_a_time_of_its_own_keeps_it() -> None:
    """A timer's requests come once a second, and no queue forms that chance would make."""
    timer = load_of([(1,)] * 100, [float(second) for second in range(100)])
    assert spread(timer, seed=1) == timer
    some = load_of([(1,)] * 102, sorted([*map(float, range(100)), 40.0, 40.0]))
    smooth = spread(some, seed=1).arrival
    assert np.array_equal(np.delete(smooth, [40, 41, 42]), np.delete(some.arrival, [40, 41, 42]))
    assert len(set(smooth[40:43])) == 3 and smooth[40] >= 40 and smooth[42] < 41
