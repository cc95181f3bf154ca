"""Engines of a simulated fleet that die, with the memory of their hosts, and come back with none.

Everybody knows at once: connections break. What was at such an engine is decided anew, as gateways
do: it is refused nowhere any more, and goes on behind the tokens that it has made, whose KV is
computed again like that of its prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .engine_time import decode_steps
from .fleet import NONE, SIZES, dequeue, mark_roles
from .inner import inner
from .room import want_room
from .sim_caches import empty_host
from .sim_decode import carry_on, leave_pool, owe, steps_left
from .sim_heap import push
from .sim_prefill import leave, rests
from .sim_world import AGAIN, DECODES, PREFILLS


@inner
def fails(w: Any, e: Any, now: Any) -> None:
    engine, seen = w.engines[e], w.fleet.engines[e]
    if not (seen.prefills or seen.decodes or engine.turns):
        return  # it is gone already
    empty_host(w.caches, seen.host)
    _stop_prefills(w, e, now)
    _stop_decoding(w, e, now)
    seen.prefills, seen.decodes = False, False
    mark_roles(w.fleet)
    rests(w, e, now)
    engine.turns = 0
    engine.version += 1


@inner
def returns(w: Any, e: Any, now: Any) -> None:
    engine, seen = w.engines[e], w.fleet.engines[e]
    if seen.prefills or seen.decodes or engine.turns:
        return  # it is back already
    seen.prefills, seen.decodes = engine.role & PREFILLS != 0, engine.role & DECODES != 0
    mark_roles(w.fleet)
    engine.since = now
    rests(w, e, now)
    if seen.decodes:
        carry_on(w, e, now)  # some may wait for room


@inner
def _again(w: Any, r: Any, now: Any) -> None:
    request = w.requests[r]
    request.until, request.due = np.inf, np.nan
    push(w.heap, now, AGAIN, NONE, r)


@inner
def _stop_prefills(w: Any, e: Any, now: Any) -> None:
    engine = w.engines[e]
    for size in range(SIZES):
        r = w.heads[e, size]
        w.heads[e, size] = NONE
        while r != NONE:
            request = w.requests[r]
            dequeue(w.fleet.lines, e, size, request.work)
            give_up(w, r, e, now)
            r = request.after
    if engine.current != NONE:
        undone = w.requests[engine.current].due - now
        engine.busy_seconds -= max(0.0, undone)
        give_up(w, engine.current, e, now)
    engine.current, engine.left = NONE, 0.0
    i = 0
    while i < w.numbers[0]:  # what is in the pool is in its host's memory
        r = np.int64(w.parked[i].who)
        if w.requests[r].engine == e:
            leave_pool(w, i)
            want_room(w.demand[0], w.requests[r].tokens, -1.0)
            _again(w, r, now)
        else:
            i += 1


@inner
def give_up(w: Any, r: Any, e: Any, now: Any) -> None:
    """A prompt that is not prefilled: it is so elsewhere."""
    leave(w, r, e)
    want_room(w.demand[0], w.requests[r].tokens, -1.0)
    _again(w, r, now)


@inner
def _stop_decoding(w: Any, e: Any, now: Any) -> None:
    engine, steps = w.engines[e], np.int64(0)
    if engine.batch:
        spent = max(0.0, now - engine.since)
        steps = decode_steps(w.times, e, spent, engine.batch, engine.context)
        steps = min(steps, steps_left(w, e))
    for i in range(engine.batch):
        r = w.members[e, i]
        request = w.requests[r]
        left = max(1.0, np.float64(w.until[e, i] - engine.steps - steps))  # the last is made again
        left = min(left, request.output - 1.0)  # that of its prefill it has, whatever step ran
        made = request.output - left
        request.tokens += made
        request.output -= made
        request.made += made
        _again(w, r, now)
    while engine.line != NONE:
        r = engine.line
        engine.line = w.requests[r].after
        owe(w, e, -1, -w.requests[r].tokens)
        want_room(w.demand[0], w.requests[r].tokens, -1.0)
        _again(w, r, now)
    engine.batch, engine.context = 0, 0.0
    owe(w, e, 0, 0.0)
