"""A fleet in virtual time, request by request: arrivals, queues, prefills, KV on its way, decoding.

Routers see a `Fleet` and what is `Found` of a prompt, as the conductor's do, and decide by the same
functions. What then happens takes the times of `.engine_time`, and not what they expected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .crowd import ended
from .decode_choice import choose_decode
from .fleet import NONE, fade, kept_by_decoders, mark_roles
from .inner import BORROWED, KEPT, inner
from .prefill_choice import choose_prefill
from .prefill_price import Asked
from .rivals import OURS, choose_as
from .scarcity import lately_busy, scarcity
from .sim_decode import expires, first_is_done, moved, room_in
from .sim_failures import fails, returns
from .sim_heap import pop
from .sim_look import look
from .sim_mixed import is_mixed
from .sim_prefill import brought, mixed_step, plan, prefilled
from .sim_roles import balances, came, drains
from .sim_world import (
    AGAIN,
    BALANCES,
    DRAINS,
    EXPIRES,
    FAILS,
    LOST,
    MOVED,
    PREFILLED,
    READY,
    REFUSED,
    RETURNS,
    blocks_of,
    count_service,
    roll,
    target,
)

LOOK_SECONDS = 0.25  # between two looks at who is busy, as conductors look about themselves
_TRIES = 16  # at an engine that may prefill


@inner
def _scarce(w: Any, now: Any) -> Any:
    mean = w.mean
    if now >= mean[1] + LOOK_SECONDS:
        mean[0] = lately_busy(w.fleet, mean[0], mean[1], now)
        fade(w.fleet.hosts, now - mean[1])
        mean[1] = now
    return scarcity(mean[0])


@inner
def _any_that_prefills(w: Any) -> Any:
    """Each with the same chance; those that only decode would favour whoever comes after them."""
    engines, count = w.fleet.engines, 0
    for _ in range(_TRIES):
        e = roll(w, len(engines))
        if engines[e].prefills:
            return e
    for e in range(len(engines)):
        count += engines[e].prefills
    left = roll(w, count) if count else NONE
    for e in range(len(engines)):
        if engines[e].prefills:
            if left == 0:
                return e
            left -= 1
    return NONE


@inner
def _arrive(w: Any, r: Any, now: Any) -> None:
    """Somebody prefills it, or it is refused; not one that had been let in before."""
    request, fleet, setting = w.requests[r], w.fleet, w.setting
    look(w.caches, blocks_of(w, r), w.on, w.found)
    first = _any_that_prefills(w)
    again = request.until == np.inf
    wanted = target(w, r)
    waited = w.rules.ttft - wanted  # it is as late as if it had
    if again:
        waited = -np.inf
    kept = kept_by_decoders(fleet, w.found)
    asked = Asked(
        now, request.tokens, setting.block_tokens, setting.token_bytes, waited, request.factor,
        kept, 0.0, 0.0 if again else waited,
    )  # fmt: skip
    e, source = NONE, NONE
    if first == NONE:
        pass  # nobody is left who prefills
    elif setting.policy == OURS:
        scarce = _scarce(w, now)
        e, source = choose_prefill(fleet, w.found, asked, w.rules, scarce, first, w.priced)
    else:
        e, source = choose_as(
            setting.policy, fleet, w.tally, w.found, asked, w.rules, w.knobs, first, w.priced
        )
    if e != NONE and setting.early and not again:
        tpot = w.rules.pace * w.rules.tpot
        good = choose_decode(
            fleet, w.found.dram, request.tokens, 0.0, setting.block_tokens, setting.token_bytes,
            setting.reserve, tpot, first, NONE, now,
        )[1]  # fmt: skip
        if not good:
            e = NONE
    if not again and w.rules.forecast and room_in(w, request.tokens) > w.rules.forecast * wanted:
        e = NONE
    if not again:
        count_service(w, r, e != NONE, now)
        came(w, r, e, now)
    if e == NONE:
        request.status = LOST if again else REFUSED
        if not again:
            ended(w.crowd, 1.0, now)
        return
    plan(w, r, now, e, source)


@njit(cache=KEPT, nogil=True, **BORROWED)
def run(w: Any) -> None:
    """From the first arrival until nothing is left to do; what became of each is in `requests`."""
    # Numbers of requests and engines are of one kind wherever they come from: for each kind all
    # that an event calls would be compiled anew.
    count, r, heap = len(w.requests), np.int64(0), w.heap
    mark_roles(w.fleet)
    while r < count or heap.counts[0]:
        if r < count and (heap.counts[0] == 0 or w.requests[r].arrival <= heap.events[0].time):
            _arrive(w, r, w.requests[r].arrival)
            r += 1
            continue
        now, kind, who, what = pop(heap)
        w.numbers[1] += 1
        if kind == READY:
            brought(w, what, now, who)
        elif kind == PREFILLED:
            prefilled(w, what, now, who)
        elif kind == MOVED:
            moved(w, what, now, who)
        elif kind == EXPIRES:
            expires(w, what, now)
        elif kind == FAILS:
            fails(w, who, now)
        elif kind == RETURNS:
            returns(w, who, now)
        elif kind == AGAIN:
            _arrive(w, what, now)
        elif kind == BALANCES:
            balances(w, now, r < count)
        elif kind == DRAINS:
            drains(w, who, now)
        elif w.engines[who].version != what:
            continue  # the batch has changed since this was said
        elif is_mixed(w, who):
            mixed_step(w, who, now)
        else:
            first_is_done(w, who, now)
    for i in range(w.numbers[0]):  # nobody came back who could decode them
        w.requests[w.parked[i].who].status = LOST
