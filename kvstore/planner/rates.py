"""Between which rates a highest one is looked for, and how a rate is written."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.planner.load import Load
from kvstore.planner.world import SECONDS_MAX

TIMES_MAX = 1_024.0  # the load's own rate, up or down: beyond, it is of another cluster
# And up to so many requests a second, however seldom they came: a trace of a day from one
# developer says nothing of what a cluster bears. Above, no load that is repeated lasts for long.
RATE_MAX = 1e5
_ROUNDING = 1e-6  # of a rate that was divided by the load's own, and multiplied by it again


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second between which a load's highest rate is looked for."""

    least: float
    most: float
    longest: bool  # at the least the load lasts as long as can be simulated

    @classmethod
    def of(cls, load: Load) -> Rates:
        least, slowest = load.rate / TIMES_MAX, (len(load) - 1) / SECONDS_MAX
        slowest *= 1 + _ROUNDING  # the last request is not cut off
        most = max(TIMES_MAX * load.rate, RATE_MAX)
        return cls(max(least, slowest), most, slowest > least)

    def ends_at(self, rate: float) -> bool:
        """Whether more may be borne than that: nothing faster was tried."""
        return rate >= self.most * (1 - _ROUNDING)

    @property
    def none(self) -> str:
        """Where not even the least is borne."""
        if self.longest:
            return f"none from {number(self.least)} on, the slowest that can be simulated"
        return "none is low enough"

    def text(self, rate: float) -> str:
        return f"{number(rate)} or more" if self.ends_at(rate) else number(rate)


def number(rate: float) -> str:
    """With two decimals, or three digits where these would say little of it."""
    return f"{rate:.2f}" if rate >= 0.1 or not rate else f"{rate:.3g}"
