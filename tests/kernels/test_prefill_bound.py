"""Who cannot be the cheapest is not priced: what a price cannot be below is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from kvstore.kernels.fleet import (
    Fleet,
    Found,
    mark_roles,
    most_placed,
    nothing,
    size_of,
    work_after,
)
from kvstore.kernels.prefill_bound import BOUND, NUMBER, bound_all
from kvstore.kernels.prefill_choice import price_all
from kvstore.kernels.prefill_price import COST, FETCHED, READ
from kvstore.kernels.rules import Rules
from kvstore.kernels.source_choice import choose_source
from tests.kernels.fleets import (
    ASKED,
    RULES,
    SCARCE,
    chosen,
    fleet,
    labelled_fleets,
    parted_fleets,
    rows,
    wait_behind,
)


@njit
def _bound(fleet: Any, found: Any, rules: Any) -> Any:
    best, source = choose_source(fleet, found)
    given = most_placed(fleet)
    return bound_all(fleet, found, best, source, given, ASKED, rules, SCARCE)


def bounds_and_prices(made: Fleet, found: Found, rules: Rules) -> tuple[Any, Any]:
    """Of the engines that prefill, in their order."""
    priced, prefills = rows(len(made.engines)), made.engines["prefills"]
    count = _bound(made, found, rules)
    assert found.bounds[NUMBER, :count].tolist() == np.flatnonzero(prefills).tolist()
    price_all(made, found, ASKED, rules, SCARCE, priced)
    return found.bounds[BOUND, :count].copy(), priced[prefills, COST]


@settings(max_examples=600, deadline=None)
@given(
    parted_fleets() | labelled_fleets(),
    st.sampled_from([0.0, 0.4, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 1.0]),
)
def test_no_price_is_below_its_bound(
    made: tuple[Fleet, Found], crowding: float, shortest_first: float, foresight: float
) -> None:
    rules = RULES._replace(
        crowding=crowding, shortest_first=shortest_first, foresight=foresight, gated=0.0
    )
    bounds, prices = bounds_and_prices(*made, rules)
    assert (bounds <= prices * (1 + 1e-9)).all()


@settings(max_examples=200, deadline=None)
@given(parted_fleets() | labelled_fleets(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_no_price_is_below_its_bound_where_nodes_are_gone(
    made: tuple[Fleet, Found], gone: list[bool]
) -> None:
    fleet, found = made
    away = fleet.hosts["away"] = np.array(gone[: len(fleet.hosts)])
    found.dram[away] = found.local[away] = 0
    bounds, prices = bounds_and_prices(fleet, found, RULES._replace(gated=0.0))
    assert (bounds <= prices * (1 + 1e-9)).all()


@settings(max_examples=200, deadline=None)
@given(parted_fleets(), st.sampled_from([0.0, 0.4]))
def test_where_nothing_is_to_be_brought_the_bound_is_the_price(
    made: tuple[Fleet, Found], crowding: float
) -> None:
    fleet, found = made
    found.local[:] = found.dram
    rules = RULES._replace(crowding=crowding, gated=0.0, fetch=0.0)
    bounds, prices = bounds_and_prices(fleet, found, rules)
    assert bounds == pytest.approx(prices)


def test_who_is_free_is_bound_by_what_it_costs_to_fetch_it_all() -> None:
    made, found = fleet(3), nothing(3, 3)
    found.dram[0] = found.local[0] = 20
    made.hosts["arrives"][1], made.hosts["leaves"][0] = ASKED.now + 0.2, ASKED.now + 0.1
    bounds, prices = bounds_and_prices(made, found, RULES)
    assert bounds == pytest.approx(prices)


def test_who_fetches_a_part_while_it_waits_costs_its_bound_or_a_little_more() -> None:
    made, found = fleet(2), nothing(2, 2)
    found.dram[1] = found.local[1] = 30
    made.engines["prefills"], made.engines["decodes"] = (True, False), (False, True)
    mark_roles(made)
    made.engines["busy_until"][0] = ASKED.now + 10
    made.hosts["link_seconds"] = 1 / 250e6  # 0.67 s a block, and 21 s to hand it over
    rules = RULES._replace(gated=0.0)
    bounds, prices = bounds_and_prices(made, found, rules)
    assert 0 < chosen(made, found, gated=0.0)[2][FETCHED] < 30
    assert 0.9 * prices[0] < bounds[0] <= prices[0]


def test_who_would_be_late_by_its_line_alone_has_no_bound_that_could_be_the_least() -> None:
    made, found = fleet(2), nothing(2, 2)
    made.engines["busy_until"][0] = ASKED.now + RULES.ttft
    bounds, _ = bounds_and_prices(made, found, RULES)
    assert np.isinf(bounds).tolist() == [True, False]


def test_who_overtakes_nobody_with_all_its_work_is_not_taken_to_with_less_of_it() -> None:
    made, found = fleet(2), nothing(2, 2)
    work = float(work_after(made.engines[0], ASKED.tokens, 0, ASKED.block_tokens))
    found.local[0], made.hosts["ssd_seconds"][0] = 5, 1 / 500e6  # it need not read them
    for _ in range(4):
        wait_behind(made, 0, work)
    for _ in range(3):
        wait_behind(made, 1, 5 * work)
    assert size_of(float(work_after(made.engines[0], ASKED.tokens, 5, ASKED.block_tokens))) < (
        size_of(work)
    ), "with these it would overtake all"
    engine, _, row = chosen(made, found, first=1)  # the other is priced first
    assert (engine, row[READ]) == (0, 0)
    assert row[COST] == pytest.approx(work * (5 + RULES.charge * SCARCE))
