"""What an engine's price for a prompt cannot be below, of a whole fleet: see `.prefill_price`.

It is the price, but for its rounding, of who fetches nothing and of who fetches while it is free.
Of others that fetch, the blocks that come while the prompt waits may be a part of those that there
are: what an earlier block saves is less than what a later one does, so a part costs no less than
the better of both ends. And what is read from an SSD is taken to be there when it is wanted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fleet import work_after
from .inner import inner
from .prefill_price import (
    WAIT,
    crowding_charge,
    hand_on_seconds,
    handed_seconds,
    links_scarcity,
    overtaken,
    sent_seconds,
    waits,
)

BOUND = WAIT  # a column of rows that are of an earlier prompt yet


@inner
def bound_all(
    fleet: Any, found: Any, best: Any, source: Any, given: Any, asked: Any, rules: Any,
    scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Leave every engine's bound in its row of `priced`; infinite where nothing may be sent. For
    `source`, `best` and `given` see `.prefill_choice.price_engine`."""
    engines, hosts, giver = fleet.engines, fleet.hosts, fleet.hosts[max(0, source)]
    dram, local, coming = found.dram, found.local, found.coming
    dear, labelled = 1.0 + rules.charge * scarce, len(fleet.near) > 0
    # From hosts with labels it may come from another, and sooner.
    leaves = asked.now if labelled else max(asked.now, giver.leaves)
    a_byte = giver.link_seconds if found.dram[max(0, source)] >= best else giver.ssd_seconds
    a_byte = 0.0 if labelled else max(a_byte, giver.link_seconds)
    imposed = 0.0 if labelled else rules.charge * links_scarcity(giver)
    block_bytes = asked.block_tokens * asked.token_bytes
    for number in range(len(engines)):
        engine = engines[number]
        priced[number, BOUND] = np.inf
        if not engine.prefills:
            continue
        at = engine.host
        host = hosts[at]
        there = max(dram[at], coming[number]) if rules.foresight else dram[at]
        fetched = best if rules.fetch and source != at else 0
        most = max(there, local[at], fetched)
        work = work_after(engine, asked.tokens, most, asked.block_tokens) * asked.factor
        wait = waits(fleet, number, work, asked, rules)
        if rules.gated and asked.waited + rules.margin * wait + work > rules.ttft:
            continue
        whole = work_after(engine, asked.tokens, there, asked.block_tokens) * asked.factor
        hand = hand_on_seconds(host, asked)
        others = rules.charge * (scarce + overtaken(fleet, number, whole, rules))
        least = handed_seconds(host, wait, work, hand, asked.now) + others * work
        if fetched > there >= local[at]:
            size, link = block_bytes * (fetched - there), host.link_seconds
            comes = rules.latency
            comes += 0.0 if labelled else max(leaves, host.arrives) - asked.now
            ready = comes + size * (0.0 if labelled else max(a_byte, link))
            displaced = rules.crowding * engine.prefill_b * (fetched - there) * asked.block_tokens
            copies = dear * displaced + imposed * link * size
            none = handed_seconds(host, wait, whole, hand, asked.now) + others * whole
            least = handed_seconds(host, max(wait, ready), work, hand, asked.now) + others * work
            least = min(none, least + copies)
            if wait > comes:
                some = min((1.0 + others) * whole, (1.0 + others) * work + copies)
                least = min(least, wait + some)
        least += rules.charge * sent_seconds(host, hand)
        priced[number, BOUND] = least + crowding_charge(engine, host, there, given, asked, rules)


@inner
def least_bound(priced: Any, first: Any) -> Any:
    """Whose bound is the least: who is likely to be the cheapest. Of equals the first, from engine
    number `first` on."""
    count, chosen, least = len(priced), first, np.inf
    for step in range(first, first + count):
        number = step - (count if step >= count else 0)
        if priced[number, BOUND] < least:
            chosen, least = number, priced[number, BOUND]
    return chosen
