"""Costs learned from what engines report, one report at a time, so that no report does harm.

A fit learns, for each coefficient of its prior, the logarithm of the factor by which it is off, so
none can become negative. It is recursive least squares with exponential forgetting (Ljung, System
Identification, 1999, section 11.2), on the logarithm of seconds, made linear where the fit is when
a report comes (as an extended Kalman filter is). What a report is then made of are the shares that
the parts have in what the fit says: from 0 to 1 and summing to 1, for a prompt of one token as for
a million. So the matrix that is solved is well conditioned, and reports count by relative error.

A report is taken as at most `CLIP` times the usual error away from what the fit says, and never
more than a factor of `FACTOR_MAX`: a pseudo-observation (Huber, Robust Statistics, 1981, chapter
7). Whatever it says, no coefficient, hence no prediction, moves by more than `STEP_MAX`. So a pause
bends little, many reports of a new truth are believed, and what cannot be true is only counted.

That coefficients have the proportions of the prior counts as `weight` reports, and its scale as few
of these, since a prior is mostly wrong by one factor. Both fade as reports do, but `ALIKE` reports
stay: what the data does not say keeps the proportions of the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvstore.core.cost import BATCH_MAX, DecodeCost, PrefillCost, TransferCost
from kvstore.errors import Invalid
from kvstore.kernels.fitting import BIAS, FIT, WEIGHT, begin, compared, learned, unbiased

TOKENS_MAX = 1 << 24  # of one prompt, longer than any
BYTES_MAX = 1 << 50  # of one transfer
SECONDS_MIN, SECONDS_MAX = 1e-7, 3600.0  # of a step or transfer: others were not measured
COEFFICIENT_MAX = 1e6  # of a prior: keeps sums finite
HALF_LIFE = 256.0  # reports
BIAS_HALF_LIFE = 64.0
ERROR_MAX = 3.0  # relative error that one report counts for


class _Reports:
    """Counts what is taken and refused. Raises `Invalid` for half-life or weight not over 0."""

    def __init__(self, half_life: float, weight: float) -> None:
        if not (half_life > 0 and weight > 0):
            raise Invalid(f"half_life {half_life} and weight {weight} must be more than 0")
        self._keep: float = 0.5 ** (1 / half_life)  # of what was there, at each report
        self.taken = 0
        self.refused = 0

    def _accepts(self, possible: bool, seconds: float) -> bool:
        good = possible and SECONDS_MIN <= seconds <= SECONDS_MAX  # False for NaN
        self.taken += good
        self.refused += not good
        return good


class _Fit(_Reports):
    """Coefficients k, more than 0, of seconds = k . x for features x that are not negative."""

    def __init__(
        self, prior: Sequence[float], least: Sequence[float], half_life: float, weight: float
    ) -> None:
        super().__init__(half_life, weight)
        self._fits = np.zeros(1, FIT)
        # What a prior calls free is taken for nearly so: no factor would make it cost something.
        begin(self._fits[0], np.clip(prior, least, COEFFICIENT_MAX).tolist(), self._keep, weight)

    def _learn(self, first: float, second: float, third: float, seconds: float) -> None:
        learned(self._fits, first, second, third, seconds)

    @property
    def spread(self) -> float:
        """The usual relative error of reports."""
        return float(self._fits["spread"][0])

    @property
    def _coefficients(self) -> list[float]:
        found: list[float] = self._fits["found"][0].tolist()
        return found


class PrefillFit(_Fit):
    """A `PrefillCost` learned from prefills; `half_life` and `weight` are counted in them."""

    def __init__(
        self, prior: PrefillCost, half_life: float = HALF_LIFE, weight: float = WEIGHT
    ) -> None:
        super().__init__((prior.a, prior.b, prior.c), (1e-6, 1e-9, 1e-15), half_life, weight)

    def observe(self, new_tokens: float, prefix_tokens: float, seconds: float) -> None:
        possible = 1 <= new_tokens <= TOKENS_MAX and 0 <= prefix_tokens <= TOKENS_MAX
        if self._accepts(possible, seconds):
            pairs = float(new_tokens) * (new_tokens + 2.0 * prefix_tokens)
            self._learn(1.0, float(new_tokens), pairs, float(seconds))

    @property
    def cost(self) -> PrefillCost:
        return PrefillCost(*self._coefficients)


class DecodeFit(_Fit):
    """A `DecodeCost` learned from decode steps; `half_life` and `weight` are counted in them."""

    def __init__(
        self, prior: DecodeCost, half_life: float = HALF_LIFE, weight: float = WEIGHT
    ) -> None:
        super().__init__((prior.a, prior.b, prior.c), (1e-6, 1e-9, 1e-12), half_life, weight)

    def observe(self, batch: float, context_tokens: float, seconds: float) -> None:
        possible = 1 <= batch <= BATCH_MAX and 0 <= context_tokens <= TOKENS_MAX * batch
        if self._accepts(possible, seconds):
            self._learn(1.0, float(batch), float(context_tokens), float(seconds))

    @property
    def cost(self) -> DecodeCost:
        return DecodeCost(*self._coefficients)


class TransferFit(_Fit):
    """A `TransferCost` of one link, learned from transfers that waited for no other on it."""

    def __init__(
        self, prior: TransferCost, half_life: float = HALF_LIFE, weight: float = WEIGHT
    ) -> None:
        each = 1 / prior.bytes_per_second
        super().__init__((prior.latency_seconds, each), (1e-6, 1e-15), half_life, weight)

    def observe(self, size_bytes: float, seconds: float) -> None:
        if self._accepts(1 <= size_bytes <= BYTES_MAX, seconds):
            self._learn(1.0, float(size_bytes), 0.0, float(seconds))

    @property
    def cost(self) -> TransferCost:
        latency, each, _ = self._coefficients
        return TransferCost(latency, 1 / max(each, 1e-18))


class Bias(_Reports):
    """By what factor predictions are off: a mean of logarithms, which fades.

    One report counts for a factor of `BIAS_CLIP` at most, `weight` reports say for ever that none
    is off, `BIAS_MAX` is the most that comes out. Tell it what was predicted without the factor.
    """

    def __init__(self, half_life: float = BIAS_HALF_LIFE, weight: float = WEIGHT) -> None:
        super().__init__(half_life, weight)
        self._biases = np.zeros(1, BIAS)
        unbiased(self._biases, self._keep, weight)

    def observe(self, actual_seconds: float, predicted_seconds: float) -> None:
        possible = SECONDS_MIN <= predicted_seconds <= SECONDS_MAX
        if self._accepts(possible, actual_seconds):
            compared(self._biases, float(actual_seconds), float(predicted_seconds))

    @property
    def factor(self) -> float:
        """What to multiply a prediction with."""
        return float(self._biases["factor"][0])


@dataclass(frozen=True, slots=True)
class Error:
    """Means, which fade, of actual / predicted - 1, of each report at most `ERROR_MAX`."""

    size: float  # of the absolute values
    bias: float  # positive where things take longer than predicted


class Errors(_Reports):
    """How good predictions are, as they were told."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        super().__init__(half_life, WEIGHT)
        self._counted = self._sizes = self._errors = 0.0  # of 1, of absolute errors, of errors

    def observe(self, actual_seconds: float, predicted_seconds: float) -> None:
        possible = SECONDS_MIN <= predicted_seconds <= SECONDS_MAX
        if self._accepts(possible, actual_seconds):
            error = min(actual_seconds / predicted_seconds - 1, ERROR_MAX)
            self._counted = self._keep * self._counted + 1.0
            self._sizes = self._keep * self._sizes + abs(error)
            self._errors = self._keep * self._errors + error

    @property
    def mean(self) -> Error:
        counted = max(self._counted, 1.0)
        return Error(self._sizes / counted, self._errors / counted)
