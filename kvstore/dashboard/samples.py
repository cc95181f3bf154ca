"""What processes' metrics said lately: totals that only grow, and the last of what is looked up.

Pure. A process that begins anew counts from zero again; what it counted before is kept. What a
process had counted before it was first read, or while it could not be read for longer than rates
look back, is in no rate: nobody knows when that was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvstore.errors import Invalid

SERIES_MAX = 5_000  # of one process
PROCESSES_MAX = 256
WINDOW_SECONDS = 60.0  # that a rate is taken over

Labels: TypeAlias = frozenset[tuple[str, str]]
Key: TypeAlias = tuple[str, Labels]  # a sample's name and its labels


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of what a process said."""

    name: str
    labels: Labels
    value: float
    grows: bool  # a total, and not what was looked up


class Samples:
    """Of all processes that are watched, by their addresses."""

    def __init__(self) -> None:
        self._last: dict[str, dict[Key, float]] = {}
        self._read: dict[str, float] = {}  # when each said that
        self._totals: dict[Key, float] = {}
        self._gauges: dict[str, dict[Key, float]] = {}
        self._past: deque[tuple[float, dict[Key, float]]] = deque()

    def take(self, now: float, said: Mapping[str, Iterable[Sample]]) -> None:
        """What each process said at one moment; one that said nothing now is not heard of."""
        for gone in self._gauges.keys() - said.keys():
            del self._gauges[gone]
        for address, samples in said.items():
            if self._read.get(address, now) < now - WINDOW_SECONDS:
                self._last.pop(address, None)  # it was away for longer than rates look back
            self._take(address, samples)
            self._read[address] = now
        self._past.append((now, dict(self._totals)))
        while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_SECONDS:
            self._past.popleft()

    def growth(
        self, name: str, label: str = "", where: tuple[str, str] | None = None
    ) -> dict[str, float]:
        """Of a total, a second, lately, over all processes; by that label's values. `where` is a
        label and its value: of those that have it alone."""
        if len(self._past) < 2:
            return {}
        (then, before), (now, after) = self._past[0], self._past[-1]
        found: dict[str, float] = {}
        for (one, labels), total in after.items():
            if one == name and (where is None or where in labels):
                value = dict(labels).get(label, "")
                grown = (total - before.get((one, labels), 0.0)) / (now - then)
                found[value] = found.get(value, 0.0) + grown
        return found

    def buckets(self, name: str, where: tuple[str, str] | None = None) -> dict[float, float]:
        """Of a histogram, lately: how many a second took no longer than each bucket's end."""
        ends = self.growth(f"{name}_bucket", "le", where)
        return {float(end): grown for end, grown in ends.items() if end}

    def now(self, name: str, label: str = "") -> dict[str, float]:
        """Of what is looked up, summed over processes; by that label's values."""
        found: dict[str, float] = {}
        for gauges in self._gauges.values():
            for (one, labels), value in gauges.items():
                if one == name:
                    of = dict(labels).get(label, "")
                    found[of] = found.get(of, 0.0) + value
        return found

    def names(self, address: str) -> set[str]:
        """Of the totals that a process has."""
        return {name for name, _ in self._last.get(address, ())}

    def of_each(self, name: str) -> dict[str, dict[Labels, float]]:
        """Of what is looked up, by process."""
        return {
            address: {labels: value for (one, labels), value in gauges.items() if one == name}
            for address, gauges in self._gauges.items()
        }

    def _take(self, address: str, samples: Iterable[Sample]) -> None:
        last, known = self._last.get(address), {}
        if last is None and len(self._last) >= PROCESSES_MAX:
            raise Invalid(f"{address}: {PROCESSES_MAX} processes are watched, all that may be")
        gauges: dict[Key, float] = {}
        for count, sample in enumerate(samples, 1):
            if count > SERIES_MAX:
                raise Invalid(f"{address} says more than {SERIES_MAX} series")
            key = (sample.name, sample.labels)
            if not sample.grows:
                gauges[key] = sample.value
                continue
            known[key] = sample.value
            before = None if last is None else last.get(key, 0.0)
            grown = 0.0
            if before is not None:
                grown = sample.value - before if sample.value >= before else sample.value
            self._totals[key] = self._totals.get(key, 0.0) + grown
        self._last[address], self._gauges[address] = known, gauges
