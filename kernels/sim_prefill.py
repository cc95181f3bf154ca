"""Prefilling in a simulated fleet: what is brought for a prompt, when it begins, its time.

An engine prefills one prompt at a time, as `sim_line` says whose turn it is; one that cannot be in
time any more is dropped then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .crowd import ended
from .engine_time import prefill_takes
from .fleet import NONE, dequeue, enqueue, size_of, work_after
from .inner import inner
from .prefill_price import BLOCKS, FETCHED, FIRST_TOKEN, HAND, READ, READY, WORK
from .rivals import sent
from .room import want_room
from .sim_caches import keep, use
from .sim_decode import hand_over, room_in, take_in
from .sim_heap import push
from .sim_known import DRAM, expect
from .sim_learning import prefill_took, whole_took
from .sim_line import join, next_in_line, take_out
from .sim_look import leading
from .sim_mixed import begin_prompt, chunked, decode_only, has_room, is_mixed, slowed, stepped
from .sim_ways import bring
from .sim_world import AGAIN, LATE, PREFILLED, blocks_of
from .sim_world import READY as IS_READY


@inner
def plan(w: Any, r: Any, now: Any, e: Any, source: Any) -> None:
    """Send a request to an engine with the split that was priced."""
    request, fleet, blocks, row = w.requests[r], w.fleet, blocks_of(w, r), w.priced[e]
    host = fleet.engines[e].host
    request.engine, request.work = e, row[WORK]
    request.expected = now + row[FIRST_TOKEN]
    request.planned, request.fetched, request.read = row[BLOCKS], row[FETCHED], row[READ]
    request.moved = request.fetched + request.read
    ready = now + row[READY]
    use(w.caches, host, blocks[: w.found.local[host]])
    if request.fetched:
        ready = bring(w, source, host, request.fetched, now, row[READY])
        kept = min(request.planned, w.found.dram[source])
        use(w.caches, np.int32(source), blocks[:kept])  # hosts are of this kind elsewhere
    if request.read:
        fleet.hosts[host].reads = ready
    if request.until < np.inf:  # else it is refused nowhere any more
        request.until = request.arrival + w.rules.ttft  # as engines are told
    request.hand = row[HAND]
    fleet.hosts[host].owed += request.hand
    request.size = size_of(row[WORK]) if w.rules.shortest_first else 0
    enqueue(fleet.lines, e, request.size, row[WORK])
    if w.rules.foresight:
        expect(w.caches, host, blocks, 1)
    want_room(w.demand[0], request.tokens, 1.0)
    _tell(w, r, e, 1)
    sent(w.tally, e, now, row[WORK])
    if request.moved:
        push(w.heap, ready, IS_READY, e, r)
    else:
        join(w, r, e)
        begin_next(w, e, now)


@inner
def _tell(w: Any, r: Any, e: Any, more: Any) -> None:
    """Count a prompt in or out of what rivals look at."""
    tally, count = w.tally.engines[e], np.ceil(w.requests[r].tokens / w.setting.block_tokens)
    tally.queued += more
    tally.blocks += more * count
    tally.uncached += more * (count - w.requests[r].planned)
    host = w.fleet.engines[e].host
    size, most = w.caches.sizes[host, DRAM], w.caches.most[host, DRAM]
    tally.used = size / max(1, most)
    tally.full = size >= most


@inner
def brought(w: Any, r: Any, now: Any, e: Any) -> None:
    """What was to be brought is there; it is of use if what stands before it is."""
    if not (w.fleet.engines[e].prefills or w.engines[e].turns):  # it has died meanwhile
        dequeue(w.fleet.lines, e, w.requests[r].size, w.requests[r].work)
        leave(w, r, e)
        want_room(w.demand[0], w.requests[r].tokens, -1.0)
        w.requests[r].until = np.inf
        push(w.heap, now, AGAIN, NONE, r)
        return
    host, blocks, planned = w.fleet.engines[e].host, blocks_of(w, r), w.requests[r].planned
    if leading(w.caches, host, blocks) >= planned - w.requests[r].moved:
        w.fleet.hosts[host].placed += keep(w.caches, host, blocks[:planned])
    join(w, r, e)
    begin_next(w, e, now)


@inner
def _there(w: Any, r: Any, e: Any) -> Any:
    """Leading blocks that need not be computed: those that are there or were brought and held."""
    request = w.requests[r]
    found = leading(w.caches, w.fleet.engines[e].host, blocks_of(w, r))
    held = request.moved > 0 and found >= request.planned - request.moved
    return max(found, request.planned) if held else found


@inner
def _from_now(w: Any, r: Any, work: Any) -> Any:
    """Seconds until its first token if it is prefilled now."""
    if not w.rules.forecast:
        return work
    want_room(w.demand[0], w.requests[r].tokens, -1.0)
    room = room_in(w, w.requests[r].tokens)
    want_room(w.demand[0], w.requests[r].tokens, 1.0)
    return max(work, room)


@inner
def _runs(w: Any, e: Any, now: Any, work: Any) -> None:
    w.fleet.engines[e].running, w.fleet.engines[e].busy_until = work, now + work


@inner
def rests(w: Any, e: Any, now: Any) -> None:
    """An engine prefills nothing from now on, until it begins another."""
    w.fleet.engines[e].running, w.fleet.engines[e].busy_until = 0.0, now


@inner
def begin_next(w: Any, e: Any, now: Any) -> None:
    """Let an idle engine begin the prompt whose turn it is; who comes too late is dropped."""
    engine, block_tokens = w.engines[e], w.setting.block_tokens
    while engine.current == NONE:
        r = next_in_line(w, e, now)
        if r == NONE:
            return
        request = w.requests[r]
        mixed = is_mixed(w, e)
        if mixed and not has_room(w, r, e):
            return
        take_out(w, r, e)
        dequeue(w.fleet.lines, e, request.size, request.work)
        there = _there(w, r, e)
        work = request.factor * work_after(w.fleet.engines[e], request.tokens, there, block_tokens)
        if w.rules.gated and now + _from_now(w, r, work) > request.until:
            request.status = LATE
            ended(w.crowd, 1.0, now)
            want_room(w.demand[0], request.tokens, -1.0)
            leave(w, r, e)
            continue
        new = max(1.0, request.tokens - there * block_tokens)
        if mixed:
            engine.current, request.reused, request.began = r, there, now
            _runs(w, e, now, slowed(w, e, work, new))
            begin_prompt(w, e, now, new)
            return
        takes = request.fate * prefill_takes(w.times, e, new, request.tokens - new)
        engine.current, request.reused, request.began = r, there, now
        engine.busy_seconds += takes
        _runs(w, e, now, work)
        request.due = now + takes
        push(w.heap, request.due, PREFILLED, e, r)


@inner
def leave(w: Any, r: Any, e: Any) -> None:
    """A prompt is prefilled, or will not be."""
    if w.rules.foresight:
        expect(w.caches, w.fleet.engines[e].host, blocks_of(w, r), -1)
    giver = w.fleet.hosts[w.fleet.engines[e].host]
    giver.owed = max(0.0, giver.owed - w.requests[r].hand)
    _tell(w, r, e, -1)


@inner
def prefilled(w: Any, r: Any, now: Any, e: Any) -> None:
    host, blocks = w.fleet.engines[e].host, blocks_of(w, r)
    request = w.requests[r]
    if request.due != now or w.engines[e].current != r:
        return  # its engine has died meanwhile
    w.engines[e].current, request.prefilled = NONE, now
    new = max(1.0, request.tokens - request.reused * w.setting.block_tokens)
    prefill_took(w, e, new, request.tokens - new, now - request.began)
    if request.moved == 0:
        whole_took(w, r, e, now - request.began)
    rests(w, e, now)
    w.fleet.hosts[host].placed += keep(w.caches, host, blocks)
    leave(w, r, e)
    hand_over(w, r, now, host)
    begin_next(w, e, now)


@inner
def mixed_step(w: Any, e: Any, now: Any) -> None:
    """A step of an engine that does both is over."""
    r, engine = w.engines[e].current, w.engines[e]
    if r == NONE:
        stepped(w, e, now)
    elif chunked(w, e, now):
        host, blocks = w.fleet.engines[e].host, blocks_of(w, r)
        rests(w, e, now)
        w.fleet.hosts[host].placed += keep(w.caches, host, blocks)
        leave(w, r, e)
    if engine.current == NONE:
        take_in(w, e, now)
        begin_next(w, e, now)
    if engine.current == NONE:
        decode_only(w, e, now)
