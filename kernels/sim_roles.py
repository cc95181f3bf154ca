"""Engines of a simulated fleet that switch between prefilling and decoding, by the conductor's own
advice. One that is to switch is sent nothing more, finishes what it has, and then takes the other
role; meanwhile nobody else is to switch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fleet import NONE, SIZES, mark_roles
from .inner import inner
from .prefill_price import BLOCKS
from .roles import advise, asked, look
from .sim_decode import carry_on
from .sim_heap import push
from .sim_prefill import rests
from .sim_world import BALANCES, DECODES, DRAINS, PREFILLS
from .source_choice import choose_source

BALANCE_SECONDS = 10.0  # between two looks at whether one is to switch
DRAIN_SECONDS = 1.0  # between two looks at whether one has finished what it had


@inner
def came(w: Any, r: Any, e: Any, now: Any) -> None:
    """A request was sent to an engine, or refused: `NONE`. What others have of a refused one is
    not computed either."""
    tokens = w.requests[r].tokens
    blocks = np.float64(choose_source(w.fleet, w.found)[0])
    if e != NONE:
        blocks = w.priced[e, BLOCKS]
    new = max(1.0, tokens - blocks * w.setting.block_tokens)
    asked(w.work, tokens, new, now)


@inner
def balances(w: Any, now: Any, more: Any) -> None:
    """Whether one is to switch; looked at again as long as requests come."""
    if more:
        push(w.heap, now + BALANCE_SECONDS, BALANCES, NONE, 0)
    tpot = w.rules.pace * w.rules.tpot
    look(w.work[0], w.fleet.engines, tpot, now)
    for e in range(len(w.engines)):
        if w.engines[e].turns:
            return
    advise(w.fleet.engines, w.fleet.lines, w.work[0], w.setting.reserve, tpot, now, w.advice[0])
    e = w.advice[0].engine
    if e == NONE:
        return
    seen = w.fleet.engines[e]
    w.engines[e].turns = w.advice[0].role
    seen.prefills, seen.decodes = False, False
    mark_roles(w.fleet)
    drains(w, e, now)


@inner
def drains(w: Any, e: Any, now: Any) -> None:
    """An engine that is to switch does so once nothing is left of what it had."""
    engine, seen = w.engines[e], w.fleet.engines[e]
    if not engine.turns:
        return  # it has died
    waits = w.fleet.lines[SIZES - 1, e].waiting > 0 or engine.current != NONE
    if waits or engine.batch or engine.line != NONE or engine.owed_batch > 0.0:
        push(w.heap, now + DRAIN_SECONDS, DRAINS, e, 0)
        return
    did = 0 if engine.role & PREFILLS else 1
    engine.was[did] += now - engine.role_since
    engine.worked[did] += engine.busy_seconds - engine.role_busy
    engine.role_since, engine.role_busy = now, engine.busy_seconds
    engine.role, engine.turns = engine.turns, 0
    seen.prefills, seen.decodes = engine.role & PREFILLS != 0, engine.role & DECODES != 0
    mark_roles(w.fleet)
    engine.since = now
    rests(w, e, now)
    w.work[0].changed = now
    w.numbers[2] += 1
    if seen.decodes:
        carry_on(w, e, now)  # some may wait for room
