"""Several ways of doing one thing, timed in turn, so that what disturbs one disturbs all.

On a shared machine the clock speed, the neighbours and the memory bus drift by more than what is
to be measured. Ways timed minutes apart would compare two moments; here each round times every way
once, A B A B. The order never changes, so what one leaves in the caches for the next is the same
in every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Way = Callable[[], float]  # does it once and says how many seconds that took
WARM_ROUNDS = 2  # maps pages, fills caches, lets compilers finish; not counted


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure differed from round to round."""

    median: float
    min: float
    q1: float
    q3: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, q1, middle, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        return cls(float(middle), float(low), float(q1), float(q3), float(high))


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of each way, one entry a round."""

    seconds: Mapping[str, Sequence[float]]

    @property
    def count(self) -> int:
        return len(next(iter(self.seconds.values())))

    def median(self, way: str) -> float:
        return float(np.median(self.seconds[way]))

    def ratio(self, top: str, bottom: str) -> float:
        """The median of the ratio within each round.

        A slow minute slows both ways of its rounds, so it leaves their ratios as they are; between
        the medians of either way it would show.
        """
        return self.spread(top, bottom).median

    def spread(self, top: str, bottom: str) -> Spread:
        """Of the ratio within each round."""
        pairs = zip(self.seconds[top], self.seconds[bottom], strict=True)
        return Spread.of([a / b for a, b in pairs])


def timed(call: Callable[[], object]) -> Way:
    """A way whose whole call counts."""

    def way() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return way


def measure(
    ways: Mapping[str, Way],
    runs: int,
    say: Callable[[str], None],
    *,
    before: Callable[[int], None] | None = None,
) -> Rounds:
    """Time every way `runs` times. `before(round)` prepares a round and is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-WARM_ROUNDS, runs):
        if before is not None:
            before(number)
        for name, way in ways.items():
            took = way()
            if number >= 0:
                seconds[name].append(took)
        if number >= 0 and (number + 1) % max(1, runs // 4) == 0:
            say(f"{number + 1} of {runs} rounds")
    return Rounds(seconds)
