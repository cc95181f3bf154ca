from __future__ import annotations

import numpy as np
import pytest

from kvstore.errors import ConfigError
from kvstore.planner.lengths import LogNormal, Uniform

DICE = np.random.default_rng(5)


def test_half_of_log_normal_lengths_are_below_the_median_and_none_is_above_the_most() -> None:
    tokens = LogNormal(1_000, sigma=1.0, most=20_000).draw(100_000, DICE)
    assert np.median(tokens) == pytest.approx(1_000, rel=0.03)
    assert np.std(np.log(tokens)) == pytest.approx(1, rel=0.03)
    assert tokens.min() >= 1 and tokens.max() == 20_000


def test_uniform_lengths_take_both_ends_in() -> None:
    assert set(Uniform(3, 5).draw(1_000, DICE).tolist()) == {3, 4, 5}
    assert set(LogNormal(7, sigma=0).draw(10, DICE).tolist()) == {7}


@pytest.mark.parametrize(
    "kind, settings, story",
    [
        (LogNormal, {"median": 0}, "LogNormal.median = 0"),
        (LogNormal, {"median": float("nan")}, "LogNormal.median = nan"),
        (LogNormal, {"median": 5, "sigma": -1}, "LogNormal.sigma = -1"),
        (LogNormal, {"median": 5, "most": 0}, "LogNormal.most = 0"),
        (LogNormal, {"median": 5, "most": 1 << 40}, "LogNormal.most = "),
        (Uniform, {"least": 0, "most": 5}, "Uniform.least = 0"),
        (Uniform, {"least": 1.0, "most": 5}, "Uniform.least = 1.0"),
        (Uniform, {"least": 6, "most": 5}, "Uniform.least = 6: is above Uniform.most = 5"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    kind: type, settings: dict[str, float], story: str
) -> None:
    with pytest.raises(ConfigError, match=story):
        kind(**settings)
