"""Which engine is to decode a request whose prompt is prefilled: of those that have room for its KV
and stay within the target, the one whose steps stay the shortest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import decode_seconds
from .prefill_choice import NONE


@njit
def fits(fleet: Any, engine: Any, tokens: Any, reserve: Any, tpot: Any) -> Any:
    """Whether one more sequence with so much KV, and `reserve` tokens that it may grow by, has
    place, and leaves a step within `tpot` seconds. An idle engine takes whatever it has place for.
    """
    batch, context = fleet.engines[engine].batch + 1.0, fleet.engines[engine].context + tokens
    if context + reserve > fleet.engines[engine].room:
        return False
    return batch == 1.0 or decode_seconds(fleet, engine, batch, context) <= tpot


@njit
def choose_decode(fleet: Any, tokens: Any, reserve: Any, tpot: Any, first: Any) -> Any:
    """An engine, and whether the request fits there now; where it fits nowhere, the engine whose
    steps would be the shortest. `NONE` where no engine decodes."""
    chosen, least, chosen_fits, count = NONE, np.inf, False, len(fleet.engines)
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].decodes:
            continue
        good = fits(fleet, engine, tokens, reserve, tpot)
        took = decode_seconds(
            fleet, engine, fleet.engines[engine].batch + 1.0, fleet.engines[engine].context + tokens
        )
        if good > chosen_fits or (good == chosen_fits and took < least):
            chosen, least, chosen_fits = engine, took, good
    return chosen, chosen_fits
