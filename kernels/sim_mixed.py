"""Engines of a simulated fleet that prefill and decode in the same steps: chunked prefill.

While such an engine has a prompt, each of its steps computes a chunk of it and a token of every
sequence of its batch (Sarathi-Serve, OSDI'24); each of these steps is an event. What it prefilled
stays and is decoded there: nothing is handed over, and decoding waits behind every chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .engine_time import CHUNK, decode_steps, decode_takes, step_seconds
from .fleet import NONE, decode_seconds
from .inner import inner
from .room import want_room
from .sim_decode import answered, let_out, steps_left, tell
from .sim_heap import push
from .sim_learning import prefill_took, steps_took
from .sim_world import CHUNKED, SERVED, STEPPED


@inner
def is_mixed(w: Any, e: Any) -> Any:
    seen = w.fleet.engines[e]
    return seen.prefills and seen.decodes


@inner
def has_room(w: Any, r: Any, e: Any) -> Any:
    """Whether the KV of a prompt has place beside that of the batch; in an empty engine it has."""
    engine = w.engines[e]
    if engine.batch == 0:
        return True
    wanted = engine.context + w.requests[r].tokens + w.setting.reserve
    return wanted <= w.fleet.engines[e].room and engine.batch < w.members.shape[1]


@inner
def slowed(w: Any, e: Any, work: Any, new: Any) -> Any:
    """What a prefill is expected to take where each of its chunks carries the batch along."""
    engine, seen = w.engines[e], w.fleet.engines[e]
    if engine.batch == 0:
        return work
    step = decode_seconds(seen, np.float64(engine.batch), engine.context) - seen.decode_a
    return work + np.ceil(new / w.times[e, CHUNK]) * step


@inner
def begin_prompt(w: Any, e: Any, now: Any, new: Any) -> None:
    """The engine's next steps compute its prompt, from the end of the step that runs."""
    engine = w.engines[e]
    begins = now
    if engine.batch:
        spent = max(0.0, now - engine.since)
        done = decode_steps(w.times, e, spent, engine.batch, engine.context)
        done = min(done, steps_left(w, e))
        _decode(w, e, done)
        let_out(w, e, now)
        if engine.batch:
            begins = engine.since
            if begins < now:
                _decode(w, e, 1)
                begins = engine.since
                let_out(w, e, now)
    engine.left = new
    _next_chunk(w, e, max(begins, now))


@inner
def _decode(w: Any, e: Any, steps: Any) -> None:
    engine = w.engines[e]
    takes = decode_takes(w.times, e, steps, engine.batch, engine.context)
    steps_took(w, e, steps, engine.batch, engine.context, takes)
    engine.since += takes
    engine.busy_seconds += takes
    engine.steps += steps
    engine.context += steps * engine.batch


@inner
def _next_chunk(w: Any, e: Any, begins: Any) -> None:
    engine, request = w.engines[e], w.requests[w.engines[e].current]
    chunk = min(engine.left, w.times[e, CHUNK])
    before = request.tokens - engine.left
    batch, context = np.float64(engine.batch), engine.context
    takes = step_seconds(w.times, e, chunk, before, batch, context) * request.fate
    if engine.batch == 0:  # told one chunk early
        prefill_took(w, e, chunk, before, takes)
    engine.busy_seconds += takes
    engine.version += 1
    request.due = begins + takes
    push(w.heap, request.due, CHUNKED, e, engine.version)


@inner
def chunked(w: Any, e: Any, now: Any) -> Any:
    """A step is over. Whether the prompt is: then it is of the batch, or was all of its answer."""
    engine, r = w.engines[e], w.engines[e].current
    request = w.requests[r]
    engine.since = now
    engine.steps += 1
    engine.context += engine.batch
    let_out(w, e, now)
    engine.left -= min(engine.left, w.times[e, CHUNK])
    if engine.left > 0.0:
        tell(w, e)
        _next_chunk(w, e, now)
        return False
    engine.current = NONE
    request.prefilled = now
    answered(w, r, now)
    want_room(w.demand[0], request.tokens, -1.0)
    if request.output <= 1.0:
        request.finished, request.status = now, SERVED
    else:
        at = engine.batch
        w.members[e, at], w.until[e, at] = r, engine.steps + np.int64(request.output) - 1
        engine.batch += 1
        engine.context += request.tokens
    tell(w, e)
    return True


@inner
def decode_only(w: Any, e: Any, now: Any) -> None:
    """No prompt is to be computed: the batch goes on alone, to its next change."""
    engine = w.engines[e]
    engine.version += 1
    if engine.batch:
        takes = decode_takes(w.times, e, steps_left(w, e), engine.batch, engine.context)
        push(w.heap, engine.since + takes, STEPPED, e, engine.version)


@inner
def stepped(w: Any, e: Any, now: Any) -> None:
    """Some of a batch that goes on alone are done, as was foreseen: see `.sim_decode`."""
    if w.engines[e].batch:
        _decode(w, e, steps_left(w, e))
        let_out(w, e, now)
    tell(w, e)
