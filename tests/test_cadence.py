"""The pace of looking: soon after a layer is there, and never so often that it costs a prefill."""

from __future__ import annotations

import pytest

from kvstore.cadence import OFTEN, Cadence

SOON, LATER = 1e-4, 20e-3


def followed(layers: list[float]) -> tuple[list[float], int]:
    """How late layers that land at these moments are found, and by how many looks."""
    cadence, now, late, looks, left = Cadence(SOON, LATER, 0.0), 0.0, list[float](), 0, [*layers]
    while left:
        now += cadence.pause(now)
        looks += 1
        found = [one for one in left if one <= now]
        if found:
            cadence.landed(now, len(found))
            late += [now - one for one in found]
            left = left[len(found) :]
    return late, looks


@pytest.mark.parametrize("interval", [0.4e-3, 2e-3, 10e-3, 40e-3, 150e-3])
def test_layers_at_an_even_pace_are_found_soon_by_few_looks(interval: float) -> None:
    late, looks = followed([interval * number for number in range(1, 101)])
    assert max(late) <= max(SOON, OFTEN * 1.5 * interval)
    assert looks <= 100 * (9 + interval / LATER)


def test_a_prefill_that_waits_long_for_its_turn_is_looked_for_seldom() -> None:
    late, looks = followed([0.8, *(0.8 + 0.01 * number for number in range(1, 30))])
    assert late[0] <= LATER and max(late[3:]) <= 2e-3
    assert looks < 400


def test_the_pace_of_an_earlier_prefill_says_nothing_of_the_next() -> None:
    others = [9.0 + 0.002 * number for number in range(40)]
    late, _ = followed([0.1 * number for number in range(1, 9)] + others)
    assert max(late[-20:]) <= 1e-3


def test_a_layer_that_does_not_come_is_looked_for_ever_after() -> None:
    cadence = Cadence(SOON, LATER, 0.0)
    cadence.landed(1.0, 1)
    cadence.landed(1.01, 1)
    assert cadence.pause(9.0) == LATER
    assert all(SOON <= cadence.pause(1.01 + i / 1e4) <= LATER for i in range(2_000))
