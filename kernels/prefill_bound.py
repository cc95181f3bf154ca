"""What an engine's price for a prompt cannot be below, of a whole fleet: see `.prefill_price`.

It is the price, but for its rounding, of who fetches nothing and of who fetches while it is free.
Of others that fetch, the blocks that come while the prompt waits may be a part of those that there
are: what an earlier block saves is less than what a later one does, so a part costs no less than
the better of both ends. What is read from an SSD is taken to be there when it is wanted, and what
is computed again where it is decoded, as a node is gone, to take no time.

What is looked up of each engine is laid in rows first. What is worked out of those asks nothing, so
that the processor does so for several engines at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fleet import BOUNDS, OVERDUE, SIZES, size_of
from .inner import across, inner
from .prefill_price import (
    hand_on_seconds,
    has_place,
    leaving_seconds,
    links_scarcity,
    sent_seconds,
)

# Rows of `Found.bounds`, whose columns are the engines that prefill, one after the other. Of an
# engine: its number; leading blocks that need not be moved or computed, those behind them that it
# could fetch, and all that it would not compute; seconds until it is free, or gets to the prompt;
# its costs; of its host the way in, and what a prompt's KV takes to leave. And of the prompt there:
# least and most work, what others wait for it, other charges, and all together.
NUMBER, THERE, MORE, ALL, WAIT, A, B, C, LINK, ARRIVES = range(10)
HAND, LEAVES, WORK, WHOLE, OTHERS, CHARGES, BOUND = range(10, BOUNDS)


@inner
def bound_all(
    fleet: Any, found: Any, best: Any, source: Any, given: Any, asked: Any, rules: Any, scarce: Any
) -> Any:
    """Fill the rows of `found.bounds`; for how many engines. `BOUND` is infinite where a prompt
    would be too late. For `source`, `best` and `given` see `.prefill_choice.price_engine`."""
    rows, giver = found.bounds, fleet.hosts[max(0, source)]
    count = _look_up(fleet, found, best, source, asked, rules)
    _work(rows, count, given, asked, rules)
    _wait(fleet.lines, rows, count, rules, rules.charge * scarce)
    # Where hosts have labels a part may come from another, and sooner: at once, for all we know.
    alone = 1.0 if len(fleet.near) == 0 else 0.0
    in_dram = found.dram[max(0, source)] >= best
    a_byte = giver.link_seconds if in_dram else max(giver.link_seconds, giver.ssd_seconds)
    imposed = alone * rules.charge * links_scarcity(giver)
    dear = (1.0 + rules.charge * scarce) * rules.crowding
    _bound(rows, count, alone, giver.leaves, a_byte, imposed, dear, asked, rules)
    return count


@inner
def _look_up(fleet: Any, found: Any, best: Any, source: Any, asked: Any, rules: Any) -> Any:
    rows, hosts, count = found.bounds, fleet.hosts, 0
    dram, local, coming = found.dram, found.local, found.coming
    for number in range(len(fleet.engines)):
        engine = fleet.engines[number]
        if not (engine.prefills and has_place(engine, asked)):
            continue
        at = np.uint32(engine.host)
        host = hosts[at]
        there = max(dram[at], coming[number]) if rules.foresight else dram[at]
        fetched = best if rules.fetch and source != at and not host.away else 0
        rows[NUMBER, count], rows[THERE, count] = number, there
        rows[ALL, count] = max(there, local[at], fetched)
        rows[MORE, count] = fetched - there if fetched > there >= local[at] else 0
        rows[WAIT, count] = engine.busy_until - asked.now  # what is overdue is seen to below
        rows[WORK, count] = engine.running
        rows[A, count], rows[B, count] = engine.prefill_a, engine.prefill_b
        rows[C, count] = engine.prefill_c
        rows[CHARGES, count] = host.placed
        rows[LINK, count], rows[ARRIVES, count] = host.link_seconds, host.arrives
        hand = hand_on_seconds(host, asked)
        rows[HAND, count], rows[OTHERS, count] = hand, sent_seconds(host, hand)
        rows[LEAVES, count] = leaving_seconds(host, asked.now) if hand > 0.0 else 0.0
        count += 1
    return count


@across
def _work(rows: Any, count: Any, given: Any, asked: Any, rules: Any) -> None:
    """When an engine is free, what the prompt takes there with all and with what is there, and the
    charge for what it displaces: as `.fleet.busy_for` and `.work_after` say, and
    `.prefill_price.crowding_charge`."""
    tokens, block_tokens, crowding = asked.tokens, asked.block_tokens, rules.crowding
    full, factor, charge = np.floor(tokens / block_tokens), asked.factor, rules.charge
    for one in range(count):
        a, b, c, there = rows[A, one], rows[B, one], rows[C, one], rows[THERE, one]
        left, running = rows[WAIT, one], rows[WORK, one]
        rows[WAIT, one] = left if left > 0.0 else min(-OVERDUE * left, running)
        least = max(1.0, tokens - rows[ALL, one] * block_tokens)
        most = max(1.0, tokens - there * block_tokens)
        pairs = most * (b + c * (2.0 * tokens - most))
        rows[WORK, one] = factor * (a + least * (b + c * (2.0 * tokens - least)))
        rows[WHOLE, one] = factor * (a + pairs)
        new = max(0.0, full - there)
        displaced = crowding * pairs * (rows[CHARGES, one] + new) / (given + new)
        rows[CHARGES, one] = (displaced if new > 0.0 else 0.0) + charge * rows[OTHERS, one]


@inner
def _wait(lines: Any, rows: Any, count: Any, rules: Any, scarce: Any) -> None:
    """What waits before the prompt, and those that it overtakes."""
    every, charge = SIZES - 1, rules.charge
    for one in range(count):
        number = np.uint32(rows[NUMBER, one])
        size = size_of(rows[WORK, one]) if rules.shortest_first else every
        rows[WAIT, one] += lines[size, number].ahead
        size = size_of(rows[WHOLE, one]) if rules.shortest_first else every
        overtaken = lines[every, number].waiting - lines[size, number].waiting
        rows[OTHERS, one] = scarce + charge * overtaken


@across
def _bound(
    rows: Any, count: Any, alone: Any, leaves: Any, a_byte: Any, imposed: Any, dear: Any,
    asked: Any, rules: Any,
) -> None:  # fmt: skip
    """All together. `alone` is 1 where nothing comes from nearer by than `source`, else 0."""
    now, latency, block_tokens = asked.now, rules.latency, asked.block_tokens
    block_bytes, waited = asked.block_tokens * asked.token_bytes, asked.waited
    gated, margin, ttft = rules.gated, rules.margin, rules.ttft
    for one in range(count):
        wait, work, whole = rows[WAIT, one], rows[WORK, one], rows[WHOLE, one]
        others, hand, ahead = rows[OTHERS, one], rows[HAND, one], rows[LEAVES, one]
        more, link = rows[MORE, one], rows[LINK, one]
        comes = alone * (latency + max(now, leaves, rows[ARRIVES, one]) - now) - (1.0 - alone)
        size = block_bytes * more
        ready = comes + alone * size * max(a_byte, link) if more > 0.0 else 0.0
        copies = dear * rows[B, one] * more * block_tokens + imposed * link * size
        begins = max(wait, ready)
        fetch = max(begins + work, max(begins, ahead) + hand) + others * work + copies
        none = max(wait + whole, max(wait, ahead) + hand) + others * whole
        # Of a part: what is between the ends of either of both that it waits for, and of the later.
        some = wait + min(whole + others * whole, work + others * work + copies)
        sent = max(wait, ahead) + hand + min(others * whole, others * work + copies)
        least = min(fetch, none)
        least = min(least, max(some, sent)) if (more > 0.0) & (wait > comes) else least
        late = gated * (waited + margin * wait + work) > ttft
        rows[BOUND, one] = np.inf if late else least + rows[CHARGES, one]


@inner
def least_bound(bounds: Any, count: Any, first: Any) -> Any:
    """In which column the least bound is, of equal ones the first from column `first` on: who is
    likely to be the cheapest."""
    chosen, least = first, np.inf
    for step in range(first, first + count):
        one = step - (count if step >= count else 0)
        if bounds[BOUND, one] < least:
            chosen, least = one, bounds[BOUND, one]
    return chosen


@inner
def column_of(bounds: Any, count: Any, number: Any) -> Any:
    """Of the first engine from this number on."""
    for one in range(count):
        if bounds[NUMBER, one] >= number:
            return one
    return 0
