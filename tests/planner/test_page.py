"""The page of a plan can be read, by day and by night."""

from __future__ import annotations

import pytest

from kvstore.planner.page import COLOURS, DARK
from kvstore.planner.policies import POLICIES

SEEN = 3.0  # of a line to what it is drawn on: WCAG 2.2, 1.4.11


def light(colour: str) -> float:
    """Relative luminance, as WCAG has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("colours", "back"), [(COLOURS, "#ffffff"), (DARK, "#14171a")])
def test_every_line_is_seen_on_what_it_is_drawn_on(colours: tuple[str, ...], back: str) -> None:
    assert len(set(colours)) == len(POLICIES) + 1, "one may be compared with its like with a gate"
    for one in colours:
        more, less = sorted((light(one), light(back)), reverse=True)
        assert (more + 0.05) / (less + 0.05) > SEEN, one
