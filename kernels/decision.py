"""One decision of the scheduler, from what was looked up to who is chosen, in one call.

What the pool's index says of holders becomes what each host has; what is on its way, or in memory
of an engine's own, becomes what each engine will have; then the choices are made, and what a choice
means for those that wait is written down, or taken back.

What Python calls here for each request takes a tuple's arrays one by one, and rules as a row: numba
looks into every tuple at every call, which took longer than all else that Python does for a
choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .decode_choice import choose_decode
from .expected import Expected, coming
from .fleet import (
    LINK,
    NONE,
    SIZES,
    Fleet,
    Found,
    carry,
    decode_seconds,
    dequeue,
    end_seconds,
    enqueue,
    kept_by_decoders,
    seconds_of,
    size_of,
    way_between,
    way_seconds,
)
from .fleet import fade as _fade
from .fleet import mark_roles as _mark_roles
from .inner import BORROWED, KEPT, inner
from .prefill_choice import choose_prefill, price_all
from .prefill_price import COST, Asked
from .room import room_seconds
from .room import want_room as _want_room
from .rules import Rules
from .scarcity import lately_busy as _lately_busy
from .scarcity import scarcity

BEST = 16  # engines that a decision is explained by
WHOLE = 64  # engines at most of which all are priced to explain a decision that is carried out


@njit(cache=KEPT, **BORROWED)
def choose(
    engines: Any, lines: Any, hosts: Any, near: Any, dram: Any, local: Any, on_way: Any,
    bounds: Any, places: Any, state: Any, prints: Any, holders: Any, lengths: Any, in_dram: Any,
    host_of: Any, own_holders: Any, own_lengths: Any, of_holder: Any, own: Any, priced: Any,
    best: Any, rows: Any, owns: Any, demand: Any, rules_row: Any, now: Any, tokens: Any,
    answer: Any, block_tokens: Any, token_bytes: Any, waited: Any, first: Any, every: Any,
    reserve: Any, grows: Any, alike: Any, busy: Any, spare: Any,
) -> Any:  # fmt: skip
    """Who is to prefill a prompt, or `NONE`; by which way what it fetches comes; how long it would
    then wait for room to be decoded (`alike`: behind all that came before); who would decode it, or
    `NONE`, and what a step with it takes there. Answers come to `reserve` tokens, its own to what
    it `grows` by and to `answer` at most. `busy` is the share of engines that had work lately,
    `spare` what `Asked` says of one that is idle.

    `own` gets how many leading blocks each engine has in memory of its own, by holders of those and
    the rows `of_holder`.

    `best` gets the numbers of up to `BEST` engines, the cheapest first, and `NONE` behind them;
    `rows` and `owns` get their rows of `priced` and `own`.
    With `every` all engines are among those looked at; else only those that the choice had to
    price.
    """
    fleet, found = Fleet(engines, lines, hosts, near), Found(dram, local, on_way, bounds)
    rules = rules_of(rules_row)
    _at_hosts(found, holders, lengths, in_dram, host_of)
    kept = kept_by_decoders(fleet, found)
    asked = Asked(now, tokens, block_tokens, token_bytes, waited, 1.0, kept, answer, spare)
    coming(Expected(places, state), prints, on_way)
    _nothing_comes_to_those_away(fleet, on_way)
    own[:] = 0
    for i in range(len(own_holders)):
        row = of_holder[own_holders[i]]
        if row >= 0:  # else two blocks of two crews have one fingerprint
            own[row] = own_lengths[i]
            on_way[row] = max(on_way[row], own[row])
    scarce = scarcity(busy)
    priced[:, COST] = np.inf
    chosen, source = choose_prefill(fleet, found, asked, rules, scarce, first, priced)
    way = LINK
    if source != NONE:
        way = way_between(hosts[source], hosts[engines[chosen].host])
    if every or chosen == NONE:
        price_all(fleet, found, asked, rules, scarce, priced)
    _rank(priced, best)
    for place in range(len(best)):
        if best[place] != NONE:
            owns[place] = own[best[place]]
            for column in range(rows.shape[1]):
                rows[place, column] = priced[best[place], column]
    tpot, whole = rules.pace * rules.tpot, tokens + answer
    room = room_seconds(fleet, demand[0], tokens, whole, reserve, tpot, alike)
    if chosen == NONE:
        return chosen, way, room, NONE, 0.0
    decodes = chosen
    if not engines[chosen].alone:
        decodes, _ = choose_decode(
            fleet, dram, tokens, whole, block_tokens, token_bytes, grows, tpot, first,
            chosen, now,
        )  # fmt: skip
    return chosen, way, room, decodes, _step_with(fleet, decodes, tokens)


@inner
def rules_of(row: Any) -> Any:
    """The rules of a row, which has their numbers in order."""
    return Rules(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7],
        row[8], row[9], row[10], row[11], row[12], row[13], row[14], row[15],
    )  # fmt: skip


@inner
def _step_with(fleet: Any, chosen: Any, tokens: Any) -> Any:
    """Seconds of a step of an engine that decodes one more; of nobody 0."""
    if chosen == NONE:
        return 0.0
    engine = fleet.engines[chosen]
    return decode_seconds(engine, engine.batch + 1.0, engine.context + tokens)


@inner
def _at_hosts(found: Any, holders: Any, lengths: Any, in_dram: Any, host_of: Any) -> None:
    """What holders have of a prompt becomes what hosts have."""
    found.dram[:], found.local[:] = 0, 0
    for i in range(len(holders)):
        host = host_of[holders[i]]
        if host >= 0:
            found.local[host], found.dram[host] = lengths[i], in_dram[i]


@inner
def _nothing_comes_to_those_away(fleet: Any, on_way: Any) -> None:
    """What an engine computes is with the next only in memory of its own, once that has it."""
    engines, hosts = fleet.engines, fleet.hosts
    for row in range(len(engines)):
        if hosts[engines[row].host].away:
            on_way[row] = 0


@inner
def _rank(priced: Any, best: Any) -> None:
    """The numbers of the cheapest, in order."""
    best[:] = NONE
    count = 0
    for engine in range(len(priced)):
        cost = priced[engine, COST]
        if not cost < np.inf or (count == len(best) and cost >= priced[best[count - 1], COST]):
            continue
        at = min(count, len(best) - 1)
        while at > 0 and priced[best[at - 1], COST] > cost:
            best[at] = best[at - 1]
            at -= 1
        best[at] = engine
        count = min(count + 1, len(best))


@njit(cache=KEPT, **BORROWED)
def lately_busy(fleet: Any, busy: Any, since: Any, now: Any) -> Any:
    return _lately_busy(fleet, busy, since, now)


@njit(cache=KEPT, **BORROWED)
def mark_roles(fleet: Any) -> None:
    _mark_roles(fleet)


@njit(cache=KEPT, **BORROWED)
def fade(hosts: Any, seconds: Any) -> None:
    _fade(hosts, seconds)


@njit(cache=KEPT, **BORROWED)
def ends_of(hosts: Any, giver: Any, taker: Any) -> Any:
    """Which way bytes take between two hosts, and seconds of a byte at either end."""
    way = way_between(hosts[giver], hosts[taker])
    return way, end_seconds(hosts[giver], way), end_seconds(hosts[taker], way)


@njit(cache=KEPT, **BORROWED)
def decoder(
    engines: Any, lines: Any, hosts: Any, near: Any, dram: Any, local: Any, on_way: Any,
    bounds: Any, holders: Any, lengths: Any, in_dram: Any, host_of: Any, tokens: Any, whole: Any,
    block_tokens: Any, token_bytes: Any, reserve: Any, tpot: Any, first: Any, prefilled: Any,
    now: Any,
) -> Any:  # fmt: skip
    """Who is to decode a request, whether it fits there now, what a step with it takes, and how
    many bytes of its KV are not in that engine's host's memory."""
    fleet = Fleet(engines, lines, hosts, near)
    _at_hosts(Found(dram, local, on_way, bounds), holders, lengths, in_dram, host_of)
    chosen, good = choose_decode(
        fleet, dram, tokens, whole, block_tokens, token_bytes, reserve, tpot, first, prefilled, now
    )
    if chosen == NONE:
        return NONE, False, 0.0, 0.0
    size = max(1.0, tokens - dram[engines[chosen].host] * block_tokens) * token_bytes
    return chosen, bool(good), _step_with(fleet, chosen, tokens), size


@njit(cache=KEPT, **BORROWED)
def move(hosts: Any, giver: Any, taker: Any, size: Any, now: Any) -> None:
    """So many bytes go from one host to another from now on, if both are there."""
    one, other = hosts[giver], hosts[taker]
    if giver != taker and not (one.away or other.away):
        carry(one, other, way_between(one, other), size * way_seconds(one, other), now)


@njit(cache=KEPT, **BORROWED)
def owe(hosts: Any, host: Any, seconds: Any) -> None:
    """KV that takes so long to leave a host is to be computed there, or (below 0) is not any
    more."""
    row = hosts[host]
    row.owed = max(0.0, row.owed + seconds)


@njit(cache=KEPT, **BORROWED)
def want_room(demand: Any, tokens: Any, more: Any) -> None:
    """One prompt more, or less (-1), will want room to be decoded in; `demand` is of one fleet."""
    _want_room(demand[0], tokens, more)


@njit(cache=KEPT, **BORROWED)
def wait_in_line(lines: Any, engine: Any, work: Any, shortest_first: Any) -> Any:
    """A prompt waits at an engine from now on; the size that it waits in."""
    size = size_of(work) if shortest_first else np.int64(0)
    enqueue(lines, engine, size, work)
    return size


@njit(cache=KEPT, **BORROWED)
def leave_line(lines: Any, engine: Any, size: Any, work: Any) -> None:
    """One that waited there is gone."""
    dequeue(lines, engine, size, work)


@njit(cache=KEPT, **BORROWED)
def begin(engines: Any, lines: Any, engine: Any, size: Any, work: Any, now: Any) -> None:
    """One that waited there is computed from now on."""
    dequeue(lines, engine, size, work)
    row = engines[engine]
    row.running += work
    row.busy_until = max(now, row.busy_until) + work


@njit(cache=KEPT, **BORROWED)
def end(engines: Any, engine: Any, work: Any, others: Any, now: Any) -> None:
    """One that was computed there is not any more, and so many others are."""
    row = engines[engine]
    row.running = max(0.0, row.running - work) if others else 0.0
    row.busy_until = min(row.busy_until, now + row.running)


@njit(cache=KEPT, **BORROWED)
def rank_of(work: Any) -> Any:
    """What a prompt's work counts as in a line: the least of its size."""
    return seconds_of(size_of(work))


def waiting(fleet: Any, engine: int) -> tuple[int, float]:
    """How many prompts wait at an engine, and the seconds of their work."""
    line = fleet.lines[SIZES - 1, engine]
    return int(line["waiting"]), float(line["ahead"])
