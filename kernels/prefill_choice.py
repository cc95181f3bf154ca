"""Which engine is to prefill a prompt, by what each would cost: see `.prefill_price`.

What is brought is fetched from the host with the longest prefix; or, where hosts have labels, from
the one with the longest of the engine's own domain or rack, if what is nearer costs less.

Of a thousand engines few can be the cheapest. The others are passed over by what their price cannot
be below, which is said of all first: see `.prefill_bound`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import NONE, most_placed
from .inner import BORROWED, inner
from .prefill_bound import BOUND, NUMBER, bound_all, column_of, least_bound
from .prefill_bound import WAIT as BOUND_WAIT
from .prefill_price import (
    COST,
    FETCHED,
    HANDED,
    READY,
    SOURCE,
    WAIT,
    WORK,
    crowding_charge,
    has_place,
    nearer,
    split,
)
from .source_choice import choose_source

ALIKE = 1.0 - 1e-9  # of a price: who is cheaper by less is no cheaper, sums are rounded


@inner
def _write(priced: Any, engine: Any, row: Any, source: Any, crowding: Any) -> None:
    for column in range(SOURCE):
        priced[engine, column] = row[column]
    priced[engine, COST] += crowding
    priced[engine, SOURCE] = source if row[FETCHED] else NONE


@inner
def price_engine(
    fleet: Any, number: Any, found: Any, best: Any, source: Any, given: Any,
    asked: Any, rules: Any, scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Leave an engine's best split in its row; `source` is the host with the longest prefix, or
    `NONE`, and `best` how many blocks it has; `given` are the most that a host got lately."""
    engine = fleet.engines[number]
    at, giver = engine.host, max(0, source)
    there = max(found.dram[at], found.coming[number]) if rules.foresight else found.dram[at]
    host = fleet.hosts[at]
    fetched = best if rules.fetch and source != NONE and source != at and not host.away else 0
    row = split(
        fleet, number, there, found.local[at], fleet.hosts[giver], fetched, found.dram[giver],
        asked, rules, scarce,
    )  # fmt: skip
    if len(fleet.near) and fetched > there:
        row, source = nearer(row, fleet, found, number, there, source, asked, rules, scarce)
    crowding = crowding_charge(engine, host, there, given, asked, rules)
    _write(priced, number, row, source, crowding)


@njit(**BORROWED)
def price_all(fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, priced: Any) -> None:
    """Fill every engine's row of `priced`; infinite in COST where nothing may be sent."""
    (best, source), given = choose_source(fleet, found), most_placed(fleet)
    for number in range(len(fleet.engines)):
        priced[number, COST] = np.inf
        engine = fleet.engines[number]
        if engine.prefills and has_place(engine, asked):
            price_engine(fleet, number, found, best, source, given, asked, rules, scarce, priced)


@njit(**BORROWED)
def choose_prefill(
    fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, first: Any, priced: Any
) -> Any:
    """The engine of the least price of those that keep the target, else of all; the host that it
    fetches from, if any. Looks from engine number `first` on, so that of equals chance decides.

    `NONE`, `NONE` where it is gated and nobody keeps the target, nor the longer one of who is idle,
    or nobody prefills who has place for it. The chosen engine's best split is in its row of
    `priced`; rows of others may be of an earlier prompt, for who cannot be the best is not priced:
    see `price_all`.
    """
    (best, source), given = choose_source(fleet, found), most_placed(fleet)
    count, bounds = bound_all(fleet, found, best, source, given, asked, rules, scarce), found.bounds
    if count == 0:
        return NONE, NONE
    chosen, chosen_cost, in_time = NONE, np.inf, False
    begin = column_of(bounds, count, first)
    likely, limit = least_bound(bounds, count, begin), np.inf
    for step in range(begin - 1, begin + count):
        one = step - (count if step >= count else 0) if step >= begin else likely
        if bounds[BOUND, one] >= limit or (step >= begin and one == likely):
            continue
        number = int(bounds[NUMBER, one])
        price_engine(fleet, number, found, best, source, given, asked, rules, scarce, priced)
        good = asked.waited + _comes(priced, number, rules) <= rules.ttft
        cost = priced[number, COST]
        if good > in_time or (good == in_time and cost < chosen_cost):
            chosen, chosen_cost, in_time = number, cost, good
            limit = cost * ALIKE if good else np.inf
    if rules.gated and not in_time:
        chosen = NONE
        if asked.spare > 0.0:
            chosen = _idle(
                fleet, found, count, begin, best, source, given, asked, rules, scarce, priced
            )
    if chosen == NONE:
        return NONE, NONE
    return chosen, np.int64(priced[chosen, SOURCE])


@inner
def _comes(priced: Any, number: Any, rules: Any) -> Any:
    """Seconds from now that the first token of a prompt that was priced may take to be there."""
    begins = max(priced[number, WAIT], priced[number, READY])
    return max(rules.margin * begins + priced[number, WORK], priced[number, HANDED])


@inner
def _idle(
    fleet: Any, found: Any, count: Any, begin: Any, best: Any, source: Any, given: Any, asked: Any,
    rules: Any, scarce: Any, priced: Any,
) -> Any:  # fmt: skip
    """Of engines that do nothing the one of the least price that keeps the longer target, or
    `NONE`."""
    chosen, least, bounds = NONE, np.inf, found.bounds
    for step in range(begin, begin + count):
        one = step - (count if step >= count else 0)
        if bounds[BOUND_WAIT, one] > 0.0:
            continue
        number = int(bounds[NUMBER, one])
        price_engine(fleet, number, found, best, source, given, asked, rules, scarce, priced)
        in_time = asked.waited + _comes(priced, number, rules) <= rules.ttft + asked.spare
        if in_time and priced[number, COST] < least:
            chosen, least = number, priced[number, COST]
    return chosen
