"""Which engine is to decode a request whose prompt is prefilled: of those that have room for its KV
and stay within the target, the one whose tokens come the soonest, the way of what its host does not
have of it reckoned in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import NONE, busy_seconds, decode_seconds, way_between, way_seconds
from .inner import BORROWED, inner


@njit(**BORROWED)
def fits(engine: Any, tokens: Any, whole: Any, reserve: Any, tpot: Any) -> Any:
    """Whether one more sequence with so much KV, and `reserve` tokens that it is expected to grow
    by, has place at an engine, a record, and leaves a step within `tpot` seconds. An idle engine
    takes whatever it has place for. None takes what may come to be `whole` tokens, with the longest
    answer, if that is more than it ever has place for."""
    if whole > engine.room:
        return False
    batch, context = engine.batch + 1.0, engine.context + tokens
    if batch == 1.0:
        return context <= engine.room
    return context + reserve <= engine.room and decode_seconds(engine, batch, context) <= tpot


@inner
def _move_seconds(fleet: Any, source: Any, host: Any, size: Any, now: Any) -> Any:
    """So many bytes of KV from a host's memory to another's, behind what is on its way; `NONE` for
    a source nobody knows."""
    if not (source != NONE and source != host):
        return 0.0
    giver, taker = fleet.hosts[source], fleet.hosts[host]
    begins = busy_seconds(giver, taker, way_between(giver, taker), now)
    return begins + size * way_seconds(giver, taker)


@njit(**BORROWED)
def choose_decode(
    fleet: Any, held: Any, tokens: Any, whole: Any, block_tokens: Any, token_bytes: Any,
    reserve: Any, tpot: Any, first: Any, source: Any, now: Any,
) -> Any:  # fmt: skip
    """An engine, and whether the request fits there now; where it fits nowhere, the best of those
    it does not fit now. `NONE` where no engine that decodes has place for `whole` tokens.

    The best has the least seconds a token: of its steps, and of moving the KV there from the host
    `source`, spread over the `reserve` tokens that may come. Of its leading blocks each host has
    `held`, which are not moved. So what was prefilled at an engine that decodes too stays there,
    unless steps are shorter elsewhere by more than the way costs; who asks again goes to where it
    was before; and of others that are alike the nearest gets it.
    """
    engines, count = fleet.engines, len(fleet.engines)
    chosen, least, chosen_fits = NONE, np.inf, False
    for step in range(count):
        number = first + step - (count if first + step >= count else 0)
        engine = engines[number]
        if not engine.decodes or whole > engine.room:
            continue
        took = decode_seconds(engine, engine.batch + 1.0, engine.context + tokens)
        if chosen_fits and took >= least:
            continue  # however near it is
        good = fits(engine, tokens, whole, reserve, tpot)
        if chosen_fits and not good:
            continue
        new = max(1.0, tokens - held[engine.host] * block_tokens)
        moved = _move_seconds(fleet, source, engine.host, new * token_bytes, now)
        took += moved / max(1.0, reserve)
        if good > chosen_fits or (good == chosen_fits and took < least):
            chosen, least, chosen_fits = number, took, good
    return chosen, chosen_fits
