"""Who cannot be the cheapest is not priced: what a price cannot be below is right."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import njit

from kvstore.kernels.fleet import Fleet, Found, busy_for, size_of, work_after
from kvstore.kernels.prefill_choice import (
    COST,
    hand_on_seconds,
    least_cost,
    least_work,
    sent_seconds,
    split,
)
from tests.kernels.fleets import ASKED, RULES, SCARCE, parted_fleets


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
