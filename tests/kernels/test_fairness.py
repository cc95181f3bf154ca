"""What each client may have of what there is, and how soon its first token is wanted for that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.kernels.fairness import LEAST, POWER, fade, fair_share, used_by

TOKENS = st.floats(0.0, 1e9)


def of(asked: list[float], had: list[float]) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([asked, had], np.float64)


@pytest.mark.parametrize(
    ("asked", "had", "share"),
    [
        ([100.0, 10.0], [45.0, 5.0], 40.0),  # what the small one leaves is the other's
        ([60.0, 40.0], [30.0, 20.0], 25.0),
        ([90.0, 20.0, 10.0], [30.0, 15.0, 5.0], 20.0),
        ([90.0, 90.0, 10.0, 20.0], [60.0, 0.0, 5.0, 5.0], 20.0),
        ([70.0], [30.0], 30.0),
        ([70.0, 30.0], [70.0, 30.0], math.inf),
        ([5.0, 5.0], [0.0, 0.0], 0.0),
        ([0.0], [0.0], math.inf),
    ],
)
def test_what_there_is_goes_round_from_who_asks_for_the_least(
    asked: list[float], had: list[float], share: float
) -> None:
    assert fair_share(of(asked, had)) == pytest.approx(share)


@given(st.lists(st.tuples(TOKENS, st.floats(0.0, 1.0)), min_size=1, max_size=20))
def test_at_that_share_all_is_given_out_and_no_more(clients: list[tuple[float, float]]) -> None:
    asked = [most for most, _ in clients]
    had = [most * part for most, part in clients]
    share = fair_share(of(asked, had))
    if share < math.inf:
        assert sum(min(one, share) for one in asked) == pytest.approx(sum(had), rel=1e-6, abs=1e-6)


def test_who_had_more_is_wanted_sooner_and_who_had_less_later_but_not_later_than_ever() -> None:
    assert used_by(1.0, 40.0, 45.0) == pytest.approx((40 / 45) ** POWER)
    assert used_by(1.0, 40.0, 5.0) == used_by(0.5, 40.0, 5.0) == 1.0
    assert used_by(0.5, 40.0, 40.0) == 0.5
    assert used_by(0.5, 1.0, 100.0) == 0.5 * LEAST
    assert used_by(0.5, 40.0, 0.0) == 1.0, "who comes now has had nothing"
    assert used_by(0.5, 0.0, 0.0) == 0.5, "nobody has"


@given(st.floats(1.0, 1e9), st.floats(0.0, 1.0), st.floats(0.1, 1.0))
def test_one_alone_is_as_if_nobody_counted(asked: float, part: float, patience: float) -> None:
    clients = of([asked], [asked * part])
    share, (had,) = fair_share(clients), clients[1]
    if 0 < had < asked:
        assert used_by(patience, share, had) == patience


def test_what_was_long_ago_counts_no_more() -> None:
    clients = of([100.0, 10.0], [45.0, 5.0])
    fade(clients, 60.0)
    assert clients[0] == pytest.approx([100 / math.e, 10 / math.e])
    fade(clients, 6_000.0)
    assert clients.max() < 1e-30
    before = clients.copy()
    fade(clients, -1.0)
    assert (clients == before).all(), "a moment before the last is the last"
