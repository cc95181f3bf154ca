"""Which engine is to decode a request whose prompt is prefilled: of those that have room for its KV
and stay within the target, the one whose tokens come the soonest, the way of what its host does not
have of it reckoned in; or what it takes to compute that again, where a node is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import NONE, busy_seconds, decode_seconds, way_between, way_seconds, work_after
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


@inner
def _again_seconds(
    fleet: Any, engine: Any, prefilled: Any, tokens: Any, kept: Any, block: Any
) -> Any:
    """That an engine takes to compute a prompt again, but for leading blocks that it has: by what
    it once said that its prefills cost, else by what those of others do."""
    if engine.prefill_a + engine.prefill_b > 0.0:
        return work_after(engine, tokens, kept, block)
    if prefilled != NONE:
        return work_after(fleet.engines[prefilled], tokens, kept, block)
    for other in fleet.engines:
        if other.prefills:
            return work_after(other, tokens, kept, block)
    return 0.0


@inner
def _brought_seconds(
    fleet: Any, number: Any, prefilled: Any, tokens: Any, kept: Any, block: Any, token_bytes: Any,
    now: Any,
) -> Any:  # fmt: skip
    """Until an engine has all of a prompt whose first blocks its host has. While it computes that
    again all that it decodes stand still: what they lose by it is added."""
    engine = fleet.engines[number]
    source = NONE if prefilled == NONE else np.int64(fleet.engines[prefilled].host)
    if fleet.hosts[engine.host].away or (source != NONE and fleet.hosts[source].away):
        if number == prefilled:
            return 0.0  # it has it in memory of its own
        again = _again_seconds(fleet, engine, prefilled, tokens, kept, block)
        return again * (engine.batch + 1.0)
    new = max(1.0, tokens - kept * block)
    return _move_seconds(fleet, source, engine.host, new * token_bytes, now)


@njit(**BORROWED)
def choose_decode(
    fleet: Any, held: Any, tokens: Any, whole: Any, block_tokens: Any, token_bytes: Any,
    reserve: Any, tpot: Any, first: Any, prefilled: Any, now: Any,
) -> Any:  # fmt: skip
    """An engine, and whether the request fits there now; where it fits nowhere, the best of those
    it does not fit now. `NONE` where no engine that decodes has place for `whole` tokens.

    The best has the least seconds a token: of its steps, and of moving the KV there from the host
    of the engine that `prefilled` it, spread over the `reserve` tokens that may come. Of its
    leading blocks each host has `held`, which are not moved. Where the node of either is gone the
    rest is computed again, and not moved. So what was prefilled at an engine that decodes too stays
    there, unless steps are shorter elsewhere by more than the way costs; who asks again goes to
    where it was before; and of others that are alike the nearest gets it.
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
        kept = held[engine.host]
        brought = _brought_seconds(
            fleet, number, prefilled, tokens, kept, block_tokens, token_bytes, now
        )
        took += brought / max(1.0, reserve)
        if good > chosen_fits or (good == chosen_fits and took < least):
            chosen, least, chosen_fits = number, took, good
    return chosen, chosen_fits
