"""What routers of a simulated fleet learn of its engines: each says what its steps took, as engines
report to conductors, and is expected to take as much again. By the conductor's own fits; that a
silent one follows its kin is the conductor's alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .fitting import compare, learn
from .inner import inner

PREFILL, DECODE = range(2)


@inner
def prefill_took(w: Any, e: Any, new: Any, prefix: Any, seconds: Any) -> None:
    """So many tokens of a prompt, which nothing else ran beside."""
    learn(w.fits[e, PREFILL], 1.0, new, new * (new + 2.0 * prefix), seconds)
    _price(w, e)


@inner
def whole_took(w: Any, r: Any, e: Any, seconds: Any) -> None:
    """A prompt for which nothing was brought, from beginning to end, alone."""
    request, found = w.requests[r], w.fits[e, PREFILL].found
    new = max(1.0, request.tokens - request.planned * w.setting.block_tokens)
    pairs = new * (new + 2.0 * (request.tokens - new))
    foretold = found[0] + found[1] * new + found[2] * pairs
    compare(w.biases[e], seconds, foretold * request.factor)
    _price(w, e)


@inner
def _price(w: Any, e: Any) -> None:
    factor, found, seen = w.biases[e].factor, w.fits[e, PREFILL].found, w.fleet.engines[e]
    seen.prefill_a, seen.prefill_b = factor * found[0], factor * found[1]
    seen.prefill_c = factor * found[2]


@inner
def steps_took(w: Any, e: Any, steps: Any, batch: Any, context: Any, seconds: Any) -> None:
    """So many steps of a batch, with `context` tokens at the first: they are told as one."""
    if steps <= 0:
        return
    fit, seen = w.fits[e, DECODE], w.fleet.engines[e]
    halfway = context + 0.5 * (steps - 1.0) * batch
    learn(fit, 1.0, np.float64(batch), halfway, seconds / steps)
    seen.decode_a, seen.decode_b, seen.decode_c = fit.found[0], fit.found[1], fit.found[2]
