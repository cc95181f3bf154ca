"""How long prompts and answers are: distributions of tokens to draw from, at least 1 each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvstore.errors import ConfigError
from kvstore.planner import bounds
from kvstore.planner.spans import Numbers


class Lengths(Protocol):
    """Anything tokens can be drawn from."""

    def draw(self, count: int, dice: np.random.Generator) -> Numbers:
        """So many numbers of tokens, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Most are short and a few very long, as what people write is."""

    median: float  # tokens
    sigma: float = 1.0  # of the logarithm: at 1, a sixth is over 2.7 times the median
    most: int = 1 << 17  # tokens; what would be longer is this long

    def __post_init__(self) -> None:
        bounds.number("LogNormal.median", self.median, 1, bounds.TOKENS_MAX)
        bounds.number("LogNormal.sigma", self.sigma, 0, 5)
        bounds.whole("LogNormal.most", self.most, 1, bounds.TOKENS_MAX)

    def draw(self, count: int, dice: np.random.Generator) -> Numbers:
        tokens = np.rint(dice.lognormal(np.log(self.median), self.sigma, count))
        return np.clip(tokens, 1, self.most).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any number of tokens in [least, most] is as likely as any other."""

    least: int
    most: int

    def __post_init__(self) -> None:
        bounds.whole("Uniform.least", self.least, 1, bounds.TOKENS_MAX)
        bounds.whole("Uniform.most", self.most, 1, bounds.TOKENS_MAX)
        if self.least > self.most:
            raise ConfigError(f"Uniform.least = {self.least}: is above Uniform.most = {self.most}")

    def draw(self, count: int, dice: np.random.Generator) -> Numbers:
        return dice.integers(self.least, self.most, count, endpoint=True)
