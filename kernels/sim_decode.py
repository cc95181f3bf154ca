"""Decoding in a simulated fleet: who is let into a batch, and how far batches have come.

A batch changes between steps only, and is carried on by closed forms between its changes. KV has
left the engine that prefilled it layer by layer, so that only its tail is waited for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .crowd import ended
from .decode_choice import choose_decode
from .engine_time import decode_steps, decode_takes
from .fleet import NONE
from .inner import inner
from .room import first_that_fits, room_seconds, want_room
from .sim_caches import keep, use
from .sim_heap import push
from .sim_learning import steps_took
from .sim_look import look
from .sim_ways import fetch_whole, hand_on, rest
from .sim_world import (
    EXPIRED,
    EXPIRES,
    MOVED,
    NO_ROOM,
    SERVED,
    STEPPED,
    WAITING,
    blocks_of,
    crowded,
    roll,
)


@inner
def hand_over(w: Any, r: Any, now: Any, host: Any) -> None:
    """A prompt is prefilled: its KV goes to a decoding engine, or waits in the pool for one."""
    request, setting, d = w.requests[r], w.setting, NONE
    if request.output <= 1.0:  # the prefill's own token was all of it
        answered(w, r, now)
        request.finished, request.status = now, SERVED
        want_room(w.demand[0], request.tokens, -1.0)
        return
    if not setting.park:
        d, good = _choose(w, r, now)
        if setting.check and not good and request.until < np.inf:
            request.status = NO_ROOM
            ended(w.crowd, 1.0, now)
            want_room(w.demand[0], request.tokens, -1.0)
            return
        if d != NONE:
            owe(w, d, 1, request.tokens)
    tail = hand_on(w, r, now, host, d)
    push(w.heap, now + tail + w.rules.latency, MOVED, d, r)


@inner
def answered(w: Any, r: Any, now: Any) -> None:
    """Its first token is there; unless it had it before. It is decoded from now on."""
    w.requests[r].let_in = now
    if np.isnan(w.requests[r].first_token):
        w.requests[r].first_token = now
        ended(w.crowd, 0.0, now)


@inner
def _choose(w: Any, r: Any, now: Any) -> Any:
    tpot, first = w.rules.pace * w.rules.tpot, roll(w, len(w.fleet.engines))
    request, setting = w.requests[r], w.setting
    if setting.holds:
        look(w.caches, blocks_of(w, r), w.on, w.found)
    else:
        w.found.dram[:] = 0
    return choose_decode(
        w.fleet, w.found.dram, request.tokens, 0.0, setting.block_tokens, setting.token_bytes,
        setting.reserve, tpot, first, request.engine, now,
    )  # fmt: skip


@inner
def room_in(w: Any, tokens: Any) -> Any:
    """Seconds until a prompt is expected to have room to be decoded."""
    tpot = w.rules.pace * w.rules.tpot
    return room_seconds(w.fleet, w.demand[0], tokens, 0.0, w.setting.reserve, tpot, crowded(w))


@inner
def owe(w: Any, d: Any, sequences: Any, tokens: Any) -> None:
    """So many more are on their way to an engine, or wait there; routers are told."""
    engine, seen = w.engines[d], w.fleet.engines[d]
    engine.owed_batch += sequences
    engine.owed_context += tokens
    seen.batch = engine.batch + engine.owed_batch
    seen.context = engine.context + engine.owed_context


@inner
def tell(w: Any, d: Any) -> None:
    """Routers are told what an engine decodes."""
    owe(w, d, 0, 0.0)


@inner
def moved(w: Any, r: Any, now: Any, d: Any) -> None:
    """Its KV is with a decoding engine, or in the pool until one has room."""
    request = w.requests[r]
    if d != NONE and not w.fleet.engines[d].decodes:  # it has died meanwhile
        owe(w, d, -1, -request.tokens)
        d = NONE
    if d == NONE:
        d, good = _choose(w, r, now)
        if d == NONE or (w.setting.park and not good):
            parked = w.parked[w.numbers[0]]
            parked.tokens, parked.came, parked.who = request.tokens, request.arrival, r
            parked.tpot, parked.grows = w.rules.pace * w.rules.tpot, w.setting.reserve
            w.numbers[0] += 1
            if w.rules.gated and request.until < np.inf:
                push(w.heap, max(now, request.until), EXPIRES, NONE, r)
            return
        owe(w, d, 1, request.tokens)
        left = rest(w, r, now, d)
        if left > 0.0:
            push(w.heap, now + left, MOVED, d, r)
            return
    host = w.fleet.engines[d].host
    _arrived(w, r, host)
    engine = w.engines[d]
    request.after = NONE
    if engine.line == NONE:
        engine.line = r
    else:
        w.requests[engine.line_end].after = r
    engine.line_end = r
    if engine.current == NONE:  # else it is let in once the prompt that is computed there is done
        carry_on(w, d, now)


@inner
def _arrived(w: Any, r: Any, host: Any) -> None:
    """Its KV is with a host, where some of it may have been."""
    use(w.caches, host, blocks_of(w, r))
    w.fleet.hosts[host].placed += keep(w.caches, host, blocks_of(w, r))


@inner
def expires(w: Any, r: Any, now: Any) -> None:
    """Its time is over; it is of no use any more unless it is being decoded, or about to be."""
    request = w.requests[r]
    if request.status == WAITING and np.isnan(request.first_token) and request.until <= now:
        for i in range(w.numbers[0]):
            if w.parked[i].who == r:
                request.status = EXPIRED
                leave_pool(w, i)
                ended(w.crowd, 1.0, now)
                want_room(w.demand[0], request.tokens, -1.0)
                break


@inner
def steps_left(w: Any, d: Any) -> Any:
    """Until the first of the batch is done."""
    least = w.until[d, 0]
    for i in range(1, w.engines[d].batch):
        least = min(least, w.until[d, i])
    return least - w.engines[d].steps


@inner
def carry_on(w: Any, d: Any, now: Any) -> None:
    """Bring an engine up to now: who is done leaves, who waits is let in."""
    engine, done = w.engines[d], np.int64(0)
    if engine.batch:
        spent = max(0.0, now - engine.since)
        done = decode_steps(w.times, d, spent, engine.batch, engine.context)
        done = min(done, steps_left(w, d))
    _carry_on(w, d, done, now)


@inner
def first_is_done(w: Any, d: Any, now: Any) -> None:
    """The same at the moment that was foreseen for it. All steps up to it are done: to count them
    by the seconds that passed might leave out the last, late enough for a moment to be rounded by
    more than a step is, and that would be foreseen for the same moment again, for ever."""
    _carry_on(w, d, steps_left(w, d) if w.engines[d].batch else np.int64(0), now)


@inner
def _carry_on(w: Any, d: Any, done: Any, now: Any) -> None:
    engine = w.engines[d]
    if engine.batch:
        takes = decode_takes(w.times, d, done, engine.batch, engine.context)
        steps_took(w, d, done, engine.batch, engine.context, takes)
        engine.since += takes
        engine.busy_seconds += takes
        engine.steps += done
        engine.context += done * engine.batch
        let_out(w, d, now)
    else:
        engine.since = now
    take_in(w, d, now)
    engine.version += 1
    if engine.batch:
        left = steps_left(w, d)
        takes = decode_takes(w.times, d, left, engine.batch, engine.context)
        push(w.heap, engine.since + takes, STEPPED, d, engine.version)


@inner
def take_in(w: Any, d: Any, now: Any) -> None:
    """Between two steps: those that wait at an engine, and those in the pool that fit it now."""
    _let_in(w, d, now)
    tell(w, d)
    if w.fleet.engines[d].decodes:  # one that is to switch takes no more
        _unpark(w, d, now)


@inner
def let_out(w: Any, d: Any, now: Any) -> None:
    engine, i = w.engines[d], 0
    while i < engine.batch:
        if w.until[d, i] > engine.steps:
            i += 1
            continue
        request = w.requests[w.members[d, i]]
        request.finished, request.status = engine.since, SERVED
        engine.context -= request.tokens + request.output - 1.0
        engine.batch -= 1
        last = engine.batch
        w.members[d, i], w.until[d, i] = w.members[d, last], w.until[d, last]


@inner
def _let_in(w: Any, d: Any, now: Any) -> None:
    engine = w.engines[d]
    while engine.line != NONE:
        r, at = engine.line, engine.batch
        request = w.requests[r]
        full = engine.context + request.tokens + w.setting.reserve > w.fleet.engines[d].room
        if (full and at) or at == w.members.shape[1]:
            return
        engine.line = request.after
        # A step that runs goes on as it is: who comes in it has a token of the next one first.
        runs = np.int64(at > 0 and engine.since < now)
        w.members[d, at], w.until[d, at] = r, engine.steps + runs + np.int64(request.output) - 1
        engine.batch += 1
        engine.context += request.tokens - runs
        answered(w, r, now)
        owe(w, d, -1, -request.tokens)
        want_room(w.demand[0], request.tokens, -1.0)


@inner
def leave_pool(w: Any, i: Any) -> None:
    """One that was parked is so no more."""
    w.numbers[0] -= 1
    w.parked[i] = w.parked[w.numbers[0]]


@inner
def _unpark(w: Any, d: Any, now: Any) -> None:
    """Those that wait in the pool and fit this engine now."""
    engine, seen, rules = w.engines[d], w.fleet.engines[d], w.rules
    alike = crowded(w)
    while w.numbers[0] and engine.line == NONE and engine.batch < w.members.shape[1]:
        parked = w.parked[: w.numbers[0]]
        i = first_that_fits(seen, parked, now, rules.patience, alike)
        if i == NONE:
            return
        r = np.int64(parked[i].who)
        leave_pool(w, i)
        owe(w, d, 1, w.requests[r].tokens)
        left = fetch_whole(w, r, now, d)
        if left > 0.0:
            push(w.heap, now + left, MOVED, d, r)
            continue
        engine.line = engine.line_end = r
        w.requests[r].after = NONE
        _arrived(w, r, seen.host)
        _let_in(w, d, now)
