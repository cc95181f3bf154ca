"""Who cannot be the cheapest is not priced: what a price cannot be below is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import njit

from kvstore.kernels.fleet import Fleet, Found, busy_for, nothing, size_of, work_after
from kvstore.kernels.prefill_price import (
    COST,
    READ,
    hand_on_seconds,
    least_cost,
    least_work,
    sent_seconds,
    split,
)
from tests.kernels.fleets import ASKED, RULES, SCARCE, chosen, fleet, parted_fleets, wait_behind


@njit
def bound_and_price(fleet: Any, found: Any, number: Any, source: Any, rules: Any) -> Any:
    """What an engine's splits are said to cost at least, at a glance and by another look, with all
    that a host has fetched; and what the best costs."""
    engine, line, hosts = fleet.engines[number], fleet.lines[number], fleet.hosts
    host, there, best = hosts[engine.host], found.dram[engine.host], found.local[source]
    work = work_after(engine, ASKED.tokens, best, ASKED.block_tokens)
    wait = busy_for(engine, ASKED.now) + line.ahead[size_of(work)]
    hand = hand_on_seconds(host, ASKED)
    sent = sent_seconds(host, hand)
    in_dram = found.dram[source]
    least = least_cost(
        engine, line, host, hosts[source], hand, sent, wait, there, best, in_dram,
        ASKED, rules, SCARCE,
    )  # fmt: skip
    row = split(
        engine, line, host, there, there, hosts[source], best, in_dram, ASKED, rules, SCARCE
    )
    glance = wait + (1.0 + rules.charge * SCARCE) * least_work(
        engine, there, best, work, ASKED, rules
    )
    return glance, least, row[COST]


@settings(max_examples=300, deadline=None)
@given(parted_fleets(), st.integers(0, 5), st.integers(0, 5), st.sampled_from([0.0, 0.4, 2.0]))
def test_the_price_is_known_before_its_split_is_and_is_no_less_than_what_a_glance_says(
    made: tuple[Fleet, Found], number: int, source: int, crowding: float
) -> None:
    fleet, found = made
    number, source = number % len(fleet.engines), source % len(fleet.hosts)
    assume(found.local[source] > found.dram[fleet.engines["host"][number]])
    rules = RULES._replace(crowding=crowding)
    glance, least, cost = bound_and_price(fleet, found, number, source, rules)
    assert glance <= least * (1 + 1e-9)
    assert least == cost, "of engines alike each would be priced"


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
