from __future__ import annotations

import pytest

from kvstore.percent import percent


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (1.0, 1, "100.0%"),
        (0.1 + 0.2 + 0.7, 1, "100.0%"),
        (0.9996, 1, ">99.9%"),
        (0.9994, 1, "99.9%"),
        (0.996, 0, ">99%"),
        (0.0, 1, "0.0%"),
        (0.0004, 1, "<0.1%"),
        (0.004, 0, "<1%"),
        (0.0006, 1, "0.1%"),
        (1.5, 0, "150%"),
        (-0.25, 0, "-25%"),
    ],
)
def test_only_all_is_written_as_100_and_only_nothing_as_0(
    share: float, digits: int, text: str
) -> None:
    assert percent(share, digits) == text
