"""Which engine is to decode a request whose prompt is prefilled: of those that have room for its KV
and stay within the target, the one whose tokens come the soonest. And how long it will wait for
that room, by what is on its way there and how fast room has become free lately."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import SIZES, decode_seconds, size_of
from .prefill_choice import NONE

FREED_SECONDS = 30.0  # over which the rate at which room becomes free is a mean
_TOKENS = 1e-3  # a prompt's size in tokens, as `size_of` takes it: some ten octaves of them
DEMAND = np.dtype(
    [
        ("ahead", np.float64, (SIZES,)),  # tokens that will want room, of prompts up to each size
        ("rate", np.float64),  # tokens a second that became free, of all engines
        ("since", np.float64),  # when that was worked out
    ],
    align=True,
)


@njit
def fits(engine: Any, tokens: Any, reserve: Any, tpot: Any) -> Any:
    """Whether one more sequence with so much KV, and `reserve` tokens that it may grow by, has
    place at an engine, a record, and leaves a step within `tpot` seconds. An idle engine takes
    whatever it has place for."""
    batch, context = engine.batch + 1.0, engine.context + tokens
    if context + reserve > engine.room:
        return False
    return batch == 1.0 or decode_seconds(engine, batch, context) <= tpot


@njit
def move_seconds(fleet: Any, source: Any, host: Any, size: Any) -> Any:
    """So many bytes of KV from a host's memory to another's; `NONE` for a source nobody knows."""
    if not (source != NONE and source != host):
        return 0.0
    return size * max(fleet.hosts[source].link_seconds, fleet.hosts[host].link_seconds)


@njit
def choose_decode(
    fleet: Any, tokens: Any, reserve: Any, tpot: Any, first: Any, source: Any, token_bytes: Any
) -> Any:
    """An engine, and whether the request fits there now; where it fits nowhere, the best of those
    it does not fit. `NONE` where no engine decodes.

    The best has the least seconds a token: of its steps, and of moving the KV there from the host
    `source`, spread over the `reserve` tokens that may come. So what was prefilled at an engine
    that decodes too stays there, unless steps are shorter elsewhere by more than the way costs.
    """
    engines, count = fleet.engines, len(fleet.engines)
    chosen, least, chosen_fits = NONE, np.inf, False
    for step in range(count):
        number = first + step - (count if first + step >= count else 0)
        engine = engines[number]
        if not engine.decodes:
            continue
        good = fits(engine, tokens, reserve, tpot)
        took = decode_seconds(engine, engine.batch + 1.0, engine.context + tokens)
        took += move_seconds(fleet, source, engine.host, tokens * token_bytes) / max(1.0, reserve)
        if good > chosen_fits or (good == chosen_fits and took < least):
            chosen, least, chosen_fits = number, took, good
    return chosen, chosen_fits


@njit
def want_room(demand: Any, tokens: Any, more: Any) -> None:
    """One prompt more, or less (-1), will want room."""
    for one in range(size_of(tokens * _TOKENS), SIZES):
        demand.ahead[one] = max(0.0, demand.ahead[one] + more * tokens)


@njit
def freed(demand: Any, tokens: Any, now: Any) -> None:
    """So much room became free."""
    kept = np.exp(-(now - demand.since) / FREED_SECONDS)
    demand.rate = demand.rate * kept + tokens / FREED_SECONDS
    demand.since = now


@njit
def _free(engine: Any, tokens: Any, tpot: Any) -> Any:
    """Tokens of KV that an engine still takes, in sequences of so many: those that it has place for
    and that leave a step within `tpot` seconds."""
    spare = tpot - decode_seconds(engine, engine.batch, engine.context)
    each = engine.decode_b / tokens + engine.decode_c
    return max(0.0, min(engine.room - engine.context, spare / each))


@njit
def room_seconds(fleet: Any, demand: Any, tokens: Any, tpot: Any, alike: Any) -> Any:
    """How long a prompt waits for room: until what is free and what becomes free is enough for it
    and for those before it, the smaller ones or, `alike`, all."""
    size = SIZES - 1 if alike else size_of(tokens * _TOKENS)
    wanted, engines = demand.ahead[size] + tokens, fleet.engines
    for number in range(len(engines)):
        engine = engines[number]
        if engine.decodes:
            wanted -= _free(engine, tokens, tpot)
    if wanted <= 0.0:
        return 0.0
    return wanted / demand.rate if demand.rate > 0.0 else np.inf
