"""Which engine is to decode a request whose prompt is prefilled: of those that have room for its KV
and stay within the target, the one whose steps stay the shortest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import decode_seconds
from .prefill_choice import NONE


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
def choose_decode(fleet: Any, tokens: Any, reserve: Any, tpot: Any, first: Any) -> Any:
    """An engine, and whether the request fits there now; where it fits nowhere, the engine whose
    steps would be the shortest. `NONE` where no engine decodes."""
    engines, count = fleet.engines, len(fleet.engines)
    chosen, least, chosen_fits = NONE, np.inf, False
    for step in range(count):
        number = first + step - (count if first + step >= count else 0)
        engine = engines[number]
        if not engine.decodes:
            continue
        good = fits(engine, tokens, reserve, tpot)
        took = decode_seconds(engine, engine.batch + 1.0, engine.context + tokens)
        if good > chosen_fits or (good == chosen_fits and took < least):
            chosen, least, chosen_fits = number, took, good
    return chosen, chosen_fits
