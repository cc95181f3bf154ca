"""What a line of a chart is, said once: worked out here from samples, and said in PromQL.

Pure. Each gives values by the label that its lines are told apart by; a line that has none is "".
What cannot be said yet (nothing was asked for, so there is no rate of hits) is left out, not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvstore.dashboard.samples import Samples
from kvstore.telemetry import Kind, Metric

RANGE = "1m"  # as samples.WINDOW_SECONDS


class Expression(Protocol):
    @property
    def label(self) -> str:
        """What its lines are told apart by; empty: there is one."""
        ...

    def values(self, samples: Samples) -> dict[str, float]: ...
    def promql(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Of a counter, a second."""

    metric: Metric

    @property
    def label(self) -> str:
        return self.metric.label

    def values(self, samples: Samples) -> dict[str, float]:
        return samples.growth(self.metric.exposed, self.metric.label)

    def promql(self) -> str:
        by = f" by ({self.label})" if self.label else ""
        return f"sum{by} (rate({self.metric.exposed}[{RANGE}]))"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two counters without labels, as they grow."""

    metric: Metric
    of: Metric
    label: str = ""

    def values(self, samples: Samples) -> dict[str, float]:
        part, whole = (sum(samples.growth(one.exposed).values()) for one in (self.metric, self.of))
        return {"": part / whole} if whole else {}

    def promql(self) -> str:
        part, whole = (f"sum(rate({one.exposed}[{RANGE}]))" for one in (self.metric, self.of))
        return f"{part} / {whole}"


@dataclass(frozen=True, slots=True)
class Quantile:
    """Of a histogram, as Prometheus's `histogram_quantile` reads it from the buckets: within one it
    is thought to lie evenly. Of one with a label, where that is `where`."""

    share: float
    metric: Metric
    where: str = ""
    label: str = ""

    def values(self, samples: Samples) -> dict[str, float]:
        of = (self.metric.label, self.where) if self.where else None
        found = quantile(self.share, samples.buckets(self.metric.exposed, of))
        return {} if found is None else {"": found}

    def promql(self) -> str:
        where = f'{{{self.metric.label}="{self.where}"}}' if self.where else ""
        rates = f"sum by (le) (rate({self.metric.exposed}_bucket{where}[{RANGE}]))"
        return f"histogram_quantile({self.share}, {rates})"


@dataclass(frozen=True, slots=True)
class Now:
    """Of a gauge, over all processes."""

    metric: Metric

    @property
    def label(self) -> str:
        return self.metric.label

    def values(self, samples: Samples) -> dict[str, float]:
        return samples.now(self.metric.exposed, self.metric.label)

    def promql(self) -> str:
        assert self.metric.kind is Kind.GAUGE
        by = f" by ({self.label})" if self.label else ""
        return f"sum{by} ({self.metric.exposed})"


def quantile(share: float, buckets: dict[float, float]) -> float | None:
    """`buckets`: how many took no longer than each end. None where there are none; of what lies
    beyond the last finite end, that end."""
    ends = sorted(buckets)
    if not ends or not buckets[ends[-1]]:
        return None
    wanted, low, below = share * buckets[ends[-1]], 0.0, 0.0
    for end in ends:
        count = buckets[end]
        if count >= wanted:
            if end == float("inf"):
                return low
            inside = count - below
            return low + (end - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = end, count
    return low
