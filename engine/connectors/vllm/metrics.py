"""The connector's figures, in vLLM's own `/metrics`: hits and queries in tokens, as a pair.

They are listed in `kvstore.telemetry`. Values travel from the engine to vLLM's front end as plain
numbers; seconds of single loads travel as they are, so that the histogram is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvstore.telemetry import CONNECTOR, Kind

_LISTED = {name.removeprefix("connector_"): one for name, one in CONNECTOR.items()}
COUNTERS = {name: one for name, one in _LISTED.items() if one.kind is Kind.COUNTER}
TTFT_SAVED, GPU_SAVED = "ttft_saved_seconds", "gpu_saved_seconds"
SAVED = (TTFT_SAVED, GPU_SAVED)
LOAD_SECONDS = "load_seconds"
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class MoonpoolStats(KVConnectorStats):
    """Counts since they were last taken, by name (and `.reason`), and the seconds of loads."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def add(self, name: str, amount: int = 1, reason: str = "") -> None:
        assert name in COUNTERS, f"{name} is not in metrics.COUNTERS"
        if not amount:
            return
        key = f"{name}.{reason}" if reason else name
        self.data[key] = self.data.get(key, 0) + amount

    def loaded(self, seconds: float) -> None:
        self.data.setdefault(LOAD_SECONDS, []).append(seconds)

    def saves(self, ttft: float, gpu: float) -> None:
        """Estimates of all seconds saved so far; they may fall."""
        self.data[TTFT_SAVED], self.data[GPU_SAVED] = ttft, gpu

    def aggregate(self, other: KVConnectorStats) -> MoonpoolStats:
        for name, value in other.data.items():
            if name in SAVED:
                self.data[name] = value
            else:
                self.data[name] = self.data.get(name, [] if isinstance(value, list) else 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds = self.data.get(LOAD_SECONDS, [])
        said = {name: value for name, value in self.data.items() if name != LOAD_SECONDS}
        if seconds:
            said["loads"], said["load_seconds_mean"] = len(seconds), sum(seconds) / len(seconds)
        return said

    def is_empty(self) -> bool:
        return not self.data


class MoonpoolProm(KVConnectorPromMetrics):
    """The same as Prometheus series, one set an engine."""

    def __init__(
        self, config: Any, types: Any, labels: list[str], of_engine: dict[int, list[object]]
    ) -> None:
        super().__init__(config, types, labels, of_engine)
        self._of_engine = of_engine
        self._counters = {
            name: self._counter_cls(
                name=one.exposed,
                documentation=one.text,
                labelnames=[*labels, one.label] if one.label else labels,
            )
            for name, one in COUNTERS.items()
        }
        self._seconds = self._histogram_cls(
            name=_LISTED[LOAD_SECONDS].exposed,
            documentation=_LISTED[LOAD_SECONDS].text,
            labelnames=labels,
            buckets=BUCKETS,
        )
        self._saved = {
            name: self._gauge_cls(
                name=_LISTED[name].exposed,
                documentation=_LISTED[name].text,
                labelnames=labels,
                multiprocess_mode="mostrecent",
            )
            for name in SAVED
        }
        for values in of_engine.values():  # a series that is not there cannot be charted
            for name, counter in self._counters.items():
                if not COUNTERS[name].label:
                    counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self._of_engine[engine_idx]
        for key, value in transfer_stats_data.items():
            name, _, reason = key.partition(".")
            if name == LOAD_SECONDS:
                for seconds in value:
                    self._seconds.labels(*labels).observe(seconds)
            elif name in SAVED:
                self._saved[name].labels(*labels).set(value)
            else:
                more = [reason] if reason else []
                self._counters[name].labels(*labels, *more).inc(value)


METRIC_TYPES = (Counter, Gauge, Histogram)  # what vLLM hands in the classes for
