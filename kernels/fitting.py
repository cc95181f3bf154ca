"""Learns what steps take, a step at a time: the loop of `kvstore.core.fit`, which says what it is
for and what it promises, and of the simulation's routers.

A step's seconds are k . x for coefficients k of more than 0 and features x of what was done. What
is learned are the logarithms w of k to the prior's. With shares s_i = k_i x_i / (k . x), which sum
to 1, a small change of w moves the logarithm of k . x by s . dw: each step adds a row s with the
value s . w + off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from .inner import KEPT, OWN, making

MOST = 3  # coefficients of a fit
WEIGHT = 8.0  # steps that the prior counts for
SCALE = 0.02  # of that weight, for the prior's scale
ALIKE = 0.25  # steps, for ever, that all coefficients of the prior are off by one factor
CLIP = 3.0  # usual errors: one step in a hundred is further away when all is well
FACTOR_MAX = np.e  # of a step to what the fit says, however wrong the fit was lately
SPREAD_FIRST, SPREAD_MIN = 0.3, 0.02  # usual relative error: before any step, and at least
SPREAD_STEPS = 16.0  # over which it is a mean: a new truth is believed after some such times
STEP_MAX = 1.1  # factor by which one step can move anything, however few came before it
BIAS_CLIP, BIAS_MAX = 4.0, 3.0  # factor of one report, and of all together

_CLIP_MAX, _STEP_LOG = float(np.log(FACTOR_MAX)), float(np.log(STEP_MAX))
_BIAS_CLIP_LOG, _BIAS_MAX_LOG = float(np.log(BIAS_CLIP)), float(np.log(BIAS_MAX))

FIT = np.dtype(
    [
        ("prior", np.float64, (MOST,)),
        ("found", np.float64, (MOST,)),  # coefficients
        ("logs", np.float64, (MOST,)),  # of these to the prior's
        ("normal", np.float64, (MOST, MOST)),
        ("alike", np.float64, (MOST, MOST)),
        ("moment", np.float64, (MOST,)),
        ("keep", np.float64),  # of what was there, at each step
        ("spread", np.float64),  # usual relative error
        ("count", np.int64),  # coefficients that there are
    ],
    align=True,
)

BIAS = np.dtype(
    [
        ("factor", np.float64),  # of what comes to what is foretold without it
        ("counted", np.float64),  # reports, those that faded in part
        ("logs", np.float64),  # their sum
        ("keep", np.float64),  # of what was there, at each report
        ("weight", np.float64),  # reports that say for ever that nothing is off
    ],
    align=True,
)


def unbiased(bias: Any, keep: float, weight: float = WEIGHT) -> None:
    """Fill in records of BIAS: nothing is off."""
    bias["factor"], bias["counted"], bias["logs"] = 1.0, 0.0, 0.0
    bias["keep"], bias["weight"] = keep, weight


def begin(fit: Any, prior: Sequence[float], keep: float, weight: float = WEIGHT) -> None:
    """Fill in a record of FIT: nothing is learned yet."""
    count = len(prior)
    common = np.full((count, count), 1 / count)
    apart = np.eye(count) - common
    for name in ("normal", "alike", "moment", "logs", "prior", "found"):
        fit[name][:] = 0.0
    fit["prior"][:count] = fit["found"][:count] = prior
    fit["normal"][:count, :count] = weight / count * (apart + SCALE * common)
    fit["alike"][:count, :count] = ALIKE / count * apart
    fit["keep"], fit["spread"], fit["count"] = keep, SPREAD_FIRST, count


@making
def _solved(fit: Any, found: Any) -> Any:
    """(normal + alike) x = moment, which is positive definite: by Cholesky, in `found`."""
    count = fit.count
    low = np.empty((MOST, MOST))
    for i in range(count):
        for j in range(i + 1):
            left = fit.normal[i, j] + fit.alike[i, j]
            for k in range(j):
                left -= low[i, k] * low[j, k]
            low[i, j] = np.sqrt(left) if i == j else left / low[j, j]
    for i in range(count):
        left = fit.moment[i]
        for k in range(i):
            left -= low[i, k] * found[k]
        found[i] = left / low[i, i]
    for i in range(count - 1, -1, -1):
        left = found[i]
        for k in range(i + 1, count):
            left -= low[k, i] * found[k]
        found[i] = left / low[i, i]


@making
def learn(fit: Any, first: Any, second: Any, third: Any, seconds: Any) -> None:
    """A step with these features took so long; `third` is 0 where there are two coefficients."""
    count, said = fit.count, 0.0
    shares, solved = np.empty(MOST), np.empty(MOST)
    shares[0], shares[1], shares[2] = first, second, third
    for i in range(count):
        shares[i] *= fit.found[i]
        said += shares[i]
    clip = min(CLIP * fit.spread, _CLIP_MAX)
    off = min(max(np.log(seconds / said), -clip), clip)
    fit.spread = max(fit.spread + (abs(off) - fit.spread) / SPREAD_STEPS, SPREAD_MIN)
    value = off
    for i in range(count):
        shares[i] /= said
        value += shares[i] * fit.logs[i]
    for i in range(count):
        fit.moment[i] = fit.keep * fit.moment[i] + shares[i] * value
        for j in range(count):
            fit.normal[i, j] = fit.keep * fit.normal[i, j] + shares[i] * shares[j]
    _solved(fit, solved)
    for i in range(count):
        was = fit.logs[i]
        fit.logs[i] = min(max(solved[i], was - _STEP_LOG), was + _STEP_LOG)
        fit.found[i] = fit.prior[i] * np.exp(fit.logs[i])


@njit(cache=KEPT, **OWN)
def learned(fits: Any, first: float, second: float, third: float, seconds: float) -> None:
    """The same for one fit that an array of FIT holds, to be called from Python."""
    learn(fits[0], first, second, third, seconds)


@making
def compare(bias: Any, seconds: Any, foretold: Any) -> None:
    """It took so long; `foretold` is without the factor."""
    off = min(max(np.log(seconds / foretold), -_BIAS_CLIP_LOG), _BIAS_CLIP_LOG)
    bias.counted = bias.keep * bias.counted + 1.0
    bias.logs = bias.keep * bias.logs + off
    mean = bias.logs / (bias.counted + bias.weight)
    bias.factor = np.exp(min(max(mean, -_BIAS_MAX_LOG), _BIAS_MAX_LOG))


@njit(cache=KEPT, **OWN)
def compared(biases: Any, seconds: float, foretold: float) -> None:
    """The same for one that an array of BIAS holds, to be called from Python."""
    compare(biases[0], seconds, foretold)
