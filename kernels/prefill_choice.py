"""Which engine is to prefill a prompt, by what each would cost: see `.prefill_price`.

What is brought is fetched from the host with the longest prefix; or, where hosts have labels, from
the one with the longest of the engine's own domain or rack, if what is nearer costs less.

Of a thousand engines few can be the cheapest. The others are passed over by what their price cannot
be below, which is cheap to say: first of all, with no question between them, then of each more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import NONE, busy_for, most_placed, work_after
from .inner import BORROWED, inner
from .prefill_price import (
    COST,
    FETCHED,
    HANDED,
    READY,
    SOURCE,
    WAIT,
    WORK,
    crowding_charge,
    hand_on_seconds,
    handed_seconds,
    least_cost,
    least_work,
    nearer,
    overtaken,
    sent_seconds,
    split,
    waits,
)
from .source_choice import choose_source, longest

ROUNDED = 1.0 - 1e-9  # what is summed in another order than a price may be more by its rounding
SAMPLE = 16  # of engines, whatever they have of a prompt, one in so many may be the guess
SOME = 32  # of those that have much of it
_BOUND = WAIT  # a column of rows that are of an earlier prompt yet: see `_bounds`


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
    fetched = best if rules.fetch and source != NONE and source != at else 0
    row = split(
        engine, fleet.lines[number], fleet.hosts[at], there, found.local[at], fleet.hosts[giver],
        fetched, found.dram[giver], asked, rules, scarce,
    )  # fmt: skip
    if len(fleet.near) and fetched > there:
        row, source = nearer(row, fleet, found, number, there, source, asked, rules, scarce)
    crowding = crowding_charge(engine, fleet.hosts[at], there, given, asked, rules)
    _write(priced, number, row, source, crowding)


@njit(**BORROWED)
def price_all(fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, priced: Any) -> None:
    """Fill every engine's row of `priced`; infinite in COST where nothing may be sent."""
    (best, source), given = choose_source(fleet, found), most_placed(fleet)
    for number in range(len(fleet.engines)):
        priced[number, COST] = np.inf
        if fleet.engines[number].prefills:
            price_engine(fleet, number, found, best, source, given, asked, rules, scarce, priced)


@inner
def _ends(fleet: Any, number: Any, found: Any, asked: Any, rules: Any) -> Any:
    """Seconds until an engine is through with a prompt, with what it has of it."""
    engine = fleet.engines[number]
    if not engine.prefills:
        return np.inf
    there = max(found.dram[engine.host], found.coming[number])
    work = work_after(engine, asked.tokens, there, asked.block_tokens) * asked.factor
    return waits(engine, fleet.lines[number], work, asked, rules) + work


@inner
def _guess(fleet: Any, found: Any, asked: Any, rules: Any, first: Any) -> Any:
    """An engine that is likely to be one of the cheapest, so that few others need to be priced: of
    one in `SAMPLE` of all, and of some that have more than half as much of a prompt as any has, who
    ends it the soonest with what it has. Of engines at one host the first stands for all."""
    count, chosen, least = len(fleet.engines), first, np.inf
    for step in range(first, first + count, SAMPLE):
        number = step - (count if step >= count else 0)
        ends = _ends(fleet, number, found, asked, rules)
        if ends < least:
            chosen, least = number, ends
    most, left = max(longest(found.coming), longest(found.dram)), SOME
    for step in range(first, first + count):
        number = step - (count if step >= count else 0)
        if left and 2 * found.coming[number] > most:
            left -= 1
            ends = _ends(fleet, number, found, asked, rules)
            if ends < least:
                chosen, least = number, ends
    hosts, begin = len(fleet.hosts), fleet.engines[first].host
    for step in range(begin, begin + hosts):
        host = step - (hosts if step >= hosts else 0)
        here = np.int64(fleet.hosts[host].prefills) if 2 * found.dram[host] > most else NONE
        if left and here != NONE and found.coming[here] < found.dram[host]:
            left -= 1
            ends = _ends(fleet, here, found, asked, rules)
            if ends < least:
                chosen, least = here, ends
    return chosen


@inner
def _bounds(
    fleet: Any, found: Any, best: Any, source: Any, given: Any, asked: Any, rules: Any,
    scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Leave in `_BOUND` what each engine's price cannot be below: as if all that may come to it
    were there, and nobody waited there but for what runs."""
    engines, hosts, dear = fleet.engines, fleet.hosts, 1.0 + rules.charge * scarce
    for number in range(len(engines)):
        engine = engines[number]
        at = engine.host
        there = max(found.dram[at], found.coming[number]) if rules.foresight else found.dram[at]
        fetched = best if rules.fetch and source != at else 0
        most = max(there, found.local[at], fetched)
        work = work_after(engine, asked.tokens, most, asked.block_tokens) * asked.factor
        least = least_work(engine, there, fetched, work, asked, rules)
        least = least if fetched > there >= found.local[at] else work
        crowding = crowding_charge(engine, hosts[at], there, given, asked, rules)
        bound = ROUNDED * (dear * least + busy_for(engine, asked.now) + crowding)
        priced[number, _BOUND] = bound if engine.prefills else np.inf


@njit(**BORROWED)
def choose_prefill(
    fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, first: Any, priced: Any
) -> Any:
    """The engine of the least price of those that keep the target, else of all; the host that it
    fetches from, if any. Looks from engine number `first` on, so that of equals chance decides.

    `NONE`, `NONE` where it is gated and nobody keeps the target, or nobody prefills. The chosen
    engine's best split is in its row of `priced`; rows of others may be of an earlier prompt, for
    who cannot be the best is not priced: see `price_all`.
    """
    engines, lines, hosts = fleet.engines, fleet.lines, fleet.hosts
    dram, local, coming = found.dram, found.local, found.coming
    best, source = choose_source(fleet, found)
    giver, best_in_dram = hosts[max(0, source)], dram[max(0, source)]
    count, labelled = len(engines), len(fleet.near) > 0
    chosen, chosen_cost, in_time = NONE, np.inf, False
    given = most_placed(fleet)
    _bounds(fleet, found, best, source, given, asked, rules, scarce, priced)
    guess = _guess(fleet, found, asked, rules, first)
    for step in range(-1, count):
        number = first + step - (count if first + step >= count else 0) if step >= 0 else guess
        if (in_time and priced[number, _BOUND] >= chosen_cost) or (step >= 0 and number == guess):
            continue
        engine = engines[number]
        if not engine.prefills:
            continue
        at = engine.host
        there = max(dram[at], coming[number]) if rules.foresight else dram[at]
        fetched = best if rules.fetch and source != at else 0
        most = max(there, local[at], fetched)
        work = work_after(engine, asked.tokens, most, asked.block_tokens) * asked.factor
        wait = waits(engine, lines[number], work, asked, rules)
        if rules.gated and asked.waited + rules.margin * wait + work > rules.ttft:
            continue
        hand = hand_on_seconds(hosts[at], asked)
        sent = sent_seconds(hosts[at], hand)
        more = wait - busy_for(engine, asked.now) + rules.charge * sent
        if in_time and ROUNDED * (priced[number, _BOUND] + more) >= chosen_cost:
            continue
        crowding = crowding_charge(engine, hosts[at], there, given, asked, rules)
        if fetched > there >= local[at] and not labelled:
            least = least_cost(
                engine, lines[number], hosts[at], giver, hand, sent, wait, there, fetched,
                best_in_dram, asked, rules, scarce,
            )  # fmt: skip
        else:
            most_work = work_after(engine, asked.tokens, there, asked.block_tokens) * asked.factor
            imposed = work * (scarce + overtaken(lines[number], most_work, rules)) + sent
            least = handed_seconds(hosts[at], wait, work, hand, asked.now) + rules.charge * imposed
        if in_time and least + crowding >= chosen_cost:
            continue
        row = split(
            engine, lines[number], hosts[at], there, local[at], giver, fetched, best_in_dram,
            asked, rules, scarce,
        )  # fmt: skip
        near = source
        if labelled and fetched > there:
            row, near = nearer(row, fleet, found, number, there, source, asked, rules, scarce)
        begins = max(row[WAIT], row[READY])
        good = asked.waited + rules.margin * begins + row[WORK] <= rules.ttft
        good &= asked.waited + row[HANDED] <= rules.ttft
        cost = row[COST] + crowding
        if good > in_time or (good == in_time and cost < chosen_cost):
            chosen, chosen_cost, in_time = number, cost, good
            _write(priced, number, row, near, crowding)
    if chosen == NONE or (rules.gated and not in_time):
        return NONE, NONE
    return chosen, np.int64(priced[chosen, SOURCE])
