"""Plots in which all that is known can be seen."""

from __future__ import annotations

from kvstore.planner.svg import Axes, Series, lines


def test_a_point_between_gaps_is_drawn_as_a_dot() -> None:
    drawn = lines(
        Axes("s", "share", 1.0), [Series("one", [0, 1, 2, 3, 4], [1, None, 1, None, 1], 0)]
    )
    assert drawn.count("h0") == 3
    drawn = lines(Axes("s", "share", 1.0), [Series("one", [0, 1, 2], [None, 1, 1], 0)])
    assert "h0" not in drawn


def test_the_first_line_lies_on_top_and_is_named_first() -> None:
    both = [Series("ours", [0, 1], [1, 2], 0), Series("b", [0, 1], [2, 1], 1)]
    drawn = lines(Axes("s", "n"), both)
    assert drawn.index("line s1") < drawn.index("line s0")
    assert drawn.index(">ours</li>") < drawn.index(">b</li>")
