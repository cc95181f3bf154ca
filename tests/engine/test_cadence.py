"""The pace of looking: often when a layer is due, seldom otherwise, never not at all."""

from __future__ import annotations

import itertools

from kvstore.engine.cadence import LATER_SECONDS, SOON_SECONDS, Cadence


def looks(cadence: Cadence, start: float, end: float) -> list[float]:
    """When an engine looks between two moments, if nothing lands."""
    times, now = [], start
    while (now := now + cadence.pause(now)) < end:
        times.append(now)
    return times


def test_looks_are_dense_where_the_next_layer_is_due_and_sparse_elsewhere() -> None:
    cadence = Cadence()
    for number in range(1, 6):
        cadence.landed(0.020 * number)
    found = looks(cadence, 0.100, 0.120)
    early = [one for one in found if one < 0.114]
    assert len(early) <= 8
    around = [b - a for a, b in itertools.pairwise(found) if a > 0.1155]
    assert around and max(around) <= SOON_SECONDS * 1.01


def test_a_layer_that_does_not_come_is_looked_for_ever_after() -> None:
    cadence = Cadence()
    cadence.landed(1.0)
    cadence.landed(1.01)
    assert cadence.pause(9.0) == LATER_SECONDS
    assert all(0 < cadence.pause(1.01 + i / 1e4) <= LATER_SECONDS for i in range(2_000))
