"""When a node is late is said by what it did lately, for the size that is asked of it."""

from __future__ import annotations

import pytest

from kvstore.core.pace import KEPT, KNOWN_MIN, LATE_SECONDS_MIN, Pace
from kvstore.limits import NODES_MAX, MiB


def test_a_node_of_which_little_is_known_is_late_after_a_usual_time() -> None:
    pace = Pace()
    pace.note("a", 16 * MiB, 30.0)
    assert pace.late_after("a", 1) == LATE_SECONDS_MIN
    assert 0.1 < pace.late_after("a", 16 * MiB) < 0.3, "one slow transfer says nothing"
    assert pace.late_after("a", 16 * MiB) == pace.late_after("never heard of", 16 * MiB)


def test_a_slow_node_is_given_the_time_it_takes_and_no_more() -> None:
    pace = Pace()
    for _ in range(KNOWN_MIN):
        pace.note("slow", 8 * MiB, 4.0)
        pace.note("fast", 8 * MiB, 0.008)
    assert pace.late_after("slow", 8 * MiB) == pytest.approx(4.0)
    assert 7.0 < pace.late_after("slow", 16 * MiB) < 8.0, "twice the size takes twice as long"
    assert pace.late_after("fast", 8 * MiB) == LATE_SECONDS_MIN
    assert pace.rates()["fast"] > 400 * pace.rates()["slow"]


def test_one_transfer_in_twenty_is_late() -> None:
    pace = Pace()
    for tenths in range(1, 41):
        pace.note("a", 1 * MiB, tenths / 10)
    after = pace.late_after("a", 1 * MiB)
    assert sum(tenths / 10 >= after - 1e-9 for tenths in range(1, 41)) == 2


def test_what_was_long_ago_is_forgotten() -> None:
    pace = Pace()
    for seconds in [9.0] * KEPT + [0.9] * KEPT:
        pace.note("a", 1 * MiB, seconds)
    assert pace.late_after("a", 1 * MiB) == pytest.approx(0.9)
    for number in range(NODES_MAX):
        pace.note(f"another {number}", 1, 1.0)
    assert "a" not in pace.rates() and len(pace.rates()) == NODES_MAX
