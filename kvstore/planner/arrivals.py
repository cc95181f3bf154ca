"""When requests arrive: drawn at random, or spread where a trace was rounded.

Times between arrivals are gamma distributed. Their coefficient of variation tells how bursty they
are: 1 is a Poisson process, 3 is a service whose callers come in crowds, below 1 is a timer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvstore.errors import ConfigError
from kvstore.planner import bounds
from kvstore.planner.load import Load
from kvstore.planner.spans import Seconds

SEED_MAX = (1 << 63) - 1
RATE_MIN, RATE_MAX = 1e-6, 1e6  # requests a second
DURATION_S_MIN = 1e-3


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How many, for how long, how evenly. Raises ConfigError for what cannot be."""

    rate: float = 10.0  # requests a second
    duration_s: float = 600.0
    burstiness: float = 1.0  # coefficient of variation of the time from one to the next

    def __post_init__(self) -> None:
        bounds.number("arrivals.rate", self.rate, RATE_MIN, RATE_MAX)
        bounds.number("arrivals.duration_s", self.duration_s, DURATION_S_MIN, bounds.SECONDS_MAX)
        # Below, they are a timer's; above, the gaps are so rare that no trace is long enough.
        bounds.number("arrivals.burstiness", self.burstiness, 0.05, 20.0)
        if self.rate * self.duration_s > bounds.REQUESTS_MAX / 2:
            most = f"{bounds.REQUESTS_MAX // 2:,}"
            raise ConfigError(
                f"arrivals.duration_s = {self.duration_s:g}: at arrivals.rate = {self.rate:g} that"
                f" is more than {most} requests: shorten it"
            )

    def draw(self, dice: np.random.Generator) -> Seconds:
        """Times in [0, duration_s), ascending. Raises ConfigError if there are none."""
        times = self._times(self.rate, self.duration_s, dice)
        if not len(times):
            raise self.none()
        return times

    def starts(self, each: float, lead_s: float, dice: np.random.Generator) -> Seconds:
        """Times in [-lead_s, duration_s) of what brings so many requests each, ascending."""
        return self._times(self.rate / each, lead_s + self.duration_s, dice) - lead_s

    def none(self) -> ConfigError:
        return ConfigError(
            f"arrivals.duration_s = {self.duration_s:g}: no request came in that time at"
            f" arrivals.rate = {self.rate:g}: lengthen it"
        )

    def _times(self, rate: float, span_s: float, dice: np.random.Generator) -> Seconds:
        shape = self.burstiness**-2
        pieces, last = [], 0.0
        while last < span_s:
            count = int(1.05 * rate * (span_s - last)) + 64
            piece = last + np.cumsum(dice.gamma(shape, 1 / (rate * shape), count))
            pieces.append(piece)
            last = float(piece[-1])
        times = np.concatenate(pieces)
        return times[: np.searchsorted(times, span_s)]


def generator(seed: int) -> np.random.Generator:
    """The dice of a seed; the same for the same seed and version of numpy."""
    bounds.whole("seed", seed, 0, SEED_MAX)
    return np.random.default_rng(seed)


def spread(load: Load, seed: int) -> Load:
    """Requests that have one time, because a trace was rounded, evenly at random in their slot.

    A slot is as long as the time to the next one, and at most as most are: where nothing arrived
    in between, a slot is missing. The order stays. Who has a time of its own keeps it: it may be
    exact, as a timer's is. Where all have one time nothing is known of the slot, and the load is
    returned as it is.
    """
    dice = generator(seed)
    begin, slot = np.unique(load.arrival, return_inverse=True)
    if len(begin) == 1:
        return load
    gaps = np.diff(begin)
    usual_s = float(np.median(gaps))
    width = np.append(np.minimum(gaps, usual_s), usual_s)
    width[np.bincount(slot) == 1] = 0.0
    arrival = np.sort(begin[slot] + width[slot] * dice.random(len(load)))
    return replace(load, arrival=arrival - arrival[0])
