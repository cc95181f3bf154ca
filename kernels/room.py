"""Room to be decoded in: how long a prompt will wait for it, by what is on its way there and how
fast room becomes free, and which of those that wait is the first to be served.

A fleet's demand is one record, and those that wait are records of their own: what conductors know
and what is simulated is asked the same questions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .decode_choice import fits
from .fleet import NONE, SIZES, decode_seconds, size_of
from .inner import BORROWED, KEPT, inner

_TOKENS = 1e-3  # a prompt's size in tokens, as `size_of` takes it: some ten octaves of them
_LEAST = 1e-15  # seconds: of an engine that says that nothing takes any
DEMAND = np.dtype(
    [("ahead", np.float64, (SIZES,))]  # tokens that will want room, of prompts up to each size
)
PARKED = np.dtype(
    [
        ("tokens", np.float64),  # of the prompt
        ("whole", np.float64),  # and of the longest answer it may have; 0: nobody knows
        ("grows", np.float64),  # tokens of an answer that are expected
        ("came", np.float64),  # when its request did
        ("tpot", np.float64),  # seconds that a step with it may take
        ("who", np.int64),  # whatever the caller knows it by
    ],
    align=True,
)


@njit(cache=KEPT, **BORROWED)
def want_room(demand: Any, tokens: Any, more: Any) -> None:
    """One prompt more, or less (-1), will want room."""
    for one in range(size_of(tokens * _TOKENS), SIZES):
        demand.ahead[one] = max(0.0, demand.ahead[one] + more * tokens)


@inner
def _free(engine: Any, tokens: Any, tpot: Any) -> Any:
    """Tokens of KV that an engine still takes, in sequences of so many: those that it has place for
    and that leave a step within `tpot` seconds, and one where it is idle."""
    spare = tpot - decode_seconds(engine, engine.batch, engine.context)
    each = max(_LEAST, engine.decode_b / tokens + engine.decode_c)
    least = 0.0 if engine.batch else tokens
    return max(0.0, min(engine.room - engine.context, max(least, spare / each)))


@njit(cache=KEPT, **BORROWED)
def room_seconds(
    fleet: Any, demand: Any, tokens: Any, whole: Any, reserve: Any, tpot: Any, alike: Any
) -> Any:
    """How long a prompt waits for room: until what is free and what becomes free is enough for it
    and for those before it, the smaller ones or, `alike`, all. 0 where nobody decodes; for ever
    where no engine that does has place for the `whole` of it, its answer too, whatever they have
    together.

    Full engines free what they have room for once in the time of a sequence, `reserve` of their
    steps (Little's law).
    """
    size = SIZES - 1 if alike else size_of(tokens * _TOKENS)
    wanted, engines, rate, some = demand.ahead[size] + tokens, fleet.engines, 0.0, False
    for number in range(len(engines)):
        engine = engines[number]
        if not engine.decodes:
            continue
        some = True
        if max(tokens, whole) > engine.room:
            continue
        free = _free(engine, tokens, tpot)
        wanted -= free
        if wanted <= 0.0:
            return 0.0
        context = engine.context + free
        step = max(_LEAST, decode_seconds(engine, engine.batch + free / tokens, context))
        rate += context / (max(1.0, reserve) * step)
    if not some:
        return 0.0
    return wanted / rate if rate > 0.0 else np.inf


@njit(cache=KEPT, **BORROWED)
def first_that_fits(engine: Any, parked: Any, now: Any, patience: Any, alike: Any) -> Any:
    """Which of those that wait is served next by an engine, a record; `NONE` where it has room for
    nobody.

    The least first: what a prompt takes of an engine's room is its tokens, and a second of waiting
    makes up for `patience` of them. `alike`, the first that came is the first: in a crowd it would
    be the long ones that are served no more.
    """
    best, least = NONE, np.inf
    for i in range(len(parked)):
        one = parked[i]
        rank = one.came if alike else one.tokens - patience * (now - one.came)
        if rank < least and fits(engine, one.tokens, one.whole, one.grows, one.tpot):
            best, least = i, rank
    return best
