"""Steps are learned from as numpy's own solver would."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvstore.kernels.fitting import (
    ALIKE,
    BIAS,
    BIAS_CLIP,
    BIAS_MAX,
    CLIP,
    FACTOR_MAX,
    FIT,
    SCALE,
    SPREAD_FIRST,
    SPREAD_MIN,
    SPREAD_STEPS,
    STEP_MAX,
    begin,
    compared,
    learned,
    unbiased,
)

KEEP, WEIGHT = 0.99, 8.0
sizes = st.floats(1.0, 1e6)
steps = st.lists(st.tuples(sizes, sizes, st.floats(1e-4, 1e3)), min_size=1, max_size=40)


class Plain:
    """The same in numpy, matrix by matrix."""

    def __init__(self, prior: list[float]) -> None:
        count = len(prior)
        common = np.full((count, count), 1 / count)
        apart = np.eye(count) - common
        self.prior, self.logs = np.array(prior), np.zeros(count)
        self.normal = WEIGHT / count * (apart + SCALE * common)
        self.moment, self.alike = np.zeros(count), ALIKE / count * apart
        self.spread = SPREAD_FIRST

    def learn(self, features: NDArray[np.float64], seconds: float) -> None:
        parts = self.prior * np.exp(self.logs) * features
        shares = parts / parts.sum()
        clip = min(CLIP * self.spread, math.log(FACTOR_MAX))
        off = float(np.clip(math.log(seconds / parts.sum()), -clip, clip))
        self.spread = max(self.spread + (abs(off) - self.spread) / SPREAD_STEPS, SPREAD_MIN)
        self.normal = KEEP * self.normal + np.outer(shares, shares)
        self.moment = KEEP * self.moment + shares * (shares @ self.logs + off)
        found = np.linalg.solve(self.normal + self.alike, self.moment)
        step = math.log(STEP_MAX)
        self.logs = np.clip(found, self.logs - step, self.logs + step)


@settings(deadline=None)
@given(steps, st.sampled_from([2, 3]))
def test_coefficients_are_those_of_numpys_solver(
    told: list[tuple[float, float, float]], count: int
) -> None:
    prior = [0.02, 1e-4, 1e-9][:count]
    fits, plain = np.zeros(1, FIT), Plain(prior)
    begin(fits[0], prior, KEEP, WEIGHT)
    for second, third, seconds in told:
        features = np.array([1.0, second, third if count == 3 else 0.0])
        plain.learn(features[:count], seconds)
        learned(fits, *features.tolist(), seconds)
    found = fits["found"][0][:count]
    assert found == pytest.approx(plain.prior * np.exp(plain.logs), rel=1e-6)


def test_a_fit_that_begins_anew_has_forgotten_everything() -> None:
    fits, fresh = np.zeros(1, FIT), np.zeros(1, FIT)
    begin(fits[0], [1.0, 1.0, 1.0], 0.5)
    learned(fits, 1.0, 2.0, 3.0, 4.0)
    for one in (fits, fresh):
        begin(one[0], [0.1, 0.2], KEEP)
    assert fits.tobytes() == fresh.tobytes()


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1e4), st.floats(1e-6, 1e4)), max_size=40))
def test_a_bias_is_a_mean_of_logarithms_that_fade(told: list[tuple[float, float]]) -> None:
    biases = np.zeros(1, BIAS)
    unbiased(biases, KEEP, WEIGHT)
    assert biases["factor"][0] == 1.0
    for took, foretold in told:
        compared(biases, took, foretold)
    kept = [KEEP**age for age in range(len(told))][::-1]
    logs = [math.log(min(max(a / b, 1 / BIAS_CLIP), BIAS_CLIP)) for a, b in told]
    mean = sum(a * b for a, b in zip(kept, logs, strict=True)) / (sum(kept) + WEIGHT)
    wanted = min(max(math.exp(mean), 1 / BIAS_MAX), BIAS_MAX)
    assert biases["factor"][0] == pytest.approx(wanted)
