"""Whatever is held by whom: each row that can be had is asked for once, of one who has it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.sourcing import STRIPE_ROWS_MIN, stripes

DRAM, SSD, HBM = 1, 2, 4

NAMES = ("a", "b", "c", "d")


@st.composite
def holdings(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Runs of rows that are in no tier, in one or in several, of up to four holders."""
    rows = draw(st.integers(0, 60))
    found = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        runs = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 7)), min_size=1))
        tiers = [tier for length, tier in runs for _ in range(length)]
        found[name] = np.resize(np.array(tiers, dtype=np.uint8), rows)
    return found


weights = st.dictionaries(st.sampled_from(NAMES), st.floats(1.0, 1e10))


@given(holdings(), weights)
def test_every_row_that_somebody_holds_is_asked_for_once_of_one_who_has_it(
    holders: dict[str, np.ndarray], rates: dict[str, float]
) -> None:
    found = stripes(holders, rates)
    asked = [int(row) for stripe in found for row in stripe.rows]
    held = sorted({int(row) for tiers in holders.values() for row in np.flatnonzero(tiers)})
    assert sorted(asked) == held
    for stripe in found:
        assert len(stripe.rows) and (np.diff(stripe.rows) == 1).all(), "a stripe is one run"
        assert holders[stripe.holder][stripe.rows].all()
        assert stripe.holder not in stripe.others
        for other, tiers in holders.items():
            if other != stripe.holder:
                assert (other in stripe.others) == bool(tiers[stripe.rows].all())


@given(holdings(), weights)
def test_nobody_reads_a_disk_for_what_somebody_has_in_memory(
    holders: dict[str, np.ndarray], rates: dict[str, float]
) -> None:
    for stripe in stripes(holders, rates):
        for row in stripe.rows:
            in_memory = any(tiers[row] & (DRAM | HBM) for tiers in holders.values())
            assert bool(holders[stripe.holder][row] & (DRAM | HBM)) == in_memory


@given(st.integers(2 * STRIPE_ROWS_MIN, 400), st.floats(0.01, 1.0))
def test_a_long_run_is_shared_out_by_what_each_holder_moves(rows: int, slower: float) -> None:
    both = {name: np.full(rows, DRAM, dtype=np.uint8) for name in ("a", "b")}
    shares = {one.holder: len(one.rows) for one in stripes(both, {"a": 1e9, "b": slower * 1e9})}
    assert abs(shares["a"] - rows / (1 + slower)) <= 1
    assert sum(shares.values()) == rows


def test_a_short_run_is_not_shared_out_and_goes_to_the_fastest() -> None:
    both = {name: np.full(STRIPE_ROWS_MIN, SSD, dtype=np.uint8) for name in ("a", "b")}
    (only,) = stripes(both, {"a": 1.0, "b": 2.0})
    assert (only.holder, only.others) == ("b", ("a",))


def test_one_that_brought_nothing_yet_is_taken_for_the_best() -> None:
    both = {name: np.full(100, DRAM, dtype=np.uint8) for name in ("new", "slow", "fast")}
    shares = {one.holder: len(one.rows) for one in stripes(both, {"slow": 1.0, "fast": 9.0})}
    assert abs(shares["new"] - shares["fast"]) <= 1 and shares["slow"] <= 6
