"""What a simulated engine's steps take: another form than the one that policies price with.

A step's products take whichever is longer, the arithmetic or the reading of the weights, of routed
experts those that any of its tokens takes. Tokens are padded to whole tiles, and few at once use
the device badly. Attention of prefills is arithmetic, that of decoding the reading of KV. A prompt
is prefilled in chunks, each of which reads the weights anew. So no straight line fits it, and what
is fitted to it is off by some percent everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED

TILE = 128.0  # tokens that products are padded to
# Columns of an engine's row. WEIGHTS are what every step reads, EXPERTS all that are routed to, of
# which a token takes each with the probability TAKEN, alike and on its own.
OVERHEAD, WEIGHTS, TOKEN, SMALL, PAIR, CONTEXT, SEQUENCE, CHUNK, EXPERTS, TAKEN = range(10)
COLUMNS = 10
_ROUNDING = 1e-6  # of a step: a step that ends now is done, whatever its sum was rounded to


@njit(**BORROWED)
def step_seconds(times: Any, engine: Any, new: Any, prefix: Any, batch: Any, context: Any) -> Any:
    """One step: a chunk of `new` tokens behind `prefix` of its prompt, and a token of each of
    `batch` sequences, which have `context` tokens together. None of either may be 0 of both."""
    row = times[engine]
    products = 0.0
    if new > 0:
        padded = np.ceil(new / TILE) * TILE
        products = padded * row[TOKEN] * (1.0 + row[SMALL] / (row[SMALL] + padded))
    reading = row[WEIGHTS]
    if row[EXPERTS] > 0.0:
        reading += row[EXPERTS] * (1.0 - (1.0 - row[TAKEN]) ** (new + batch))
    products = max(products + batch * row[TOKEN], reading)
    attention = row[PAIR] * new * (new + 2.0 * prefix) + row[CONTEXT] * context
    return row[OVERHEAD] + products + attention + row[SEQUENCE] * batch


@njit(**BORROWED)
def prefill_takes(times: Any, engine: Any, new: Any, prefix: Any) -> Any:
    """A whole prompt on an engine that does nothing else, in chunks."""
    total, done, chunk = 0.0, 0.0, times[engine, CHUNK]
    while done < new:
        part = min(chunk, new - done)
        total += step_seconds(times, engine, part, prefix + done, 0.0, 0.0)
        done += part
    return total


@njit(**BORROWED)
def decode_takes(times: Any, engine: Any, steps: Any, batch: Any, context: Any) -> Any:
    """So many steps of a batch that stays the same, each with a token more of every sequence."""
    first = step_seconds(times, engine, 0.0, 0.0, batch, context)
    return steps * first + times[engine, CONTEXT] * batch * steps * (steps - 1.0) / 2.0


@njit(**BORROWED)
def decode_steps(times: Any, engine: Any, seconds: Any, batch: Any, context: Any) -> Any:
    """How many whole steps are done after so many seconds."""
    first = step_seconds(times, engine, 0.0, 0.0, batch, context)
    growth = 0.5 * times[engine, CONTEXT] * batch
    linear = first - growth
    root = np.sqrt(linear * linear + 4.0 * growth * seconds)
    # Not (root - linear) / (2 growth): of little growth all of that is rounding.
    return np.int64(2.0 * seconds / (root + linear) + _ROUNDING)
