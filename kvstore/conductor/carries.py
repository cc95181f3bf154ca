"""What carries KV to and from a host: its link, its wires within an NVLink domain, its way to other
racks, its SSD. At first as its engines said, then as was measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore.conductor.facts import Facts
from kvstore.core.cost import TransferCost
from kvstore.core.fit import TransferFit
from kvstore.kernels.fleet import DOMAIN, FAR, LINK


class Carries:
    """Of one host, as one crew knows it."""

    def __init__(self, facts: Facts) -> None:
        self.ssd: TransferFit | None = None
        self._ways = {LINK: TransferFit(facts.link)}
        self.stand(facts)

    def stand(self, facts: Facts) -> None:
        """Where the host stands is said anew, by the first engine there since it had none."""
        self.stands = facts
        if facts.ssd is None:
            self.ssd = None
        elif self.ssd is None:  # else it is known by what was measured
            self.ssd = TransferFit(facts.ssd)
        speeds = {DOMAIN: facts.domain_bytes_per_second, FAR: facts.far_bytes_per_second}
        for way, speed in speeds.items():
            self._ways.pop(way, None)
            if speed and (way == FAR or facts.domain):
                latency = facts.link.latency_seconds
                self._ways[way] = TransferFit(TransferCost(latency, speed))

    def observe(self, way: int, size_bytes: float, seconds: float) -> None:
        """So much took so long by a way; one of which nobody said anything is as the link."""
        self._ways.get(way, self._ways[LINK]).observe(size_bytes, seconds)

    def price(self, row: Any) -> None:
        """Write down, in a record of HOST, what a byte takes by now."""
        row["link_seconds"], row["domain_seconds"], row["far_seconds"] = (
            self._seconds(way, unsaid) for way, unsaid in ((LINK, 0), (DOMAIN, np.inf), (FAR, 0))
        )
        row["ssd_seconds"] = np.inf if self.ssd is None else _of_a_byte(self.ssd)

    def _seconds(self, way: int, unsaid: float) -> float:
        return _of_a_byte(self._ways[way]) if way in self._ways else unsaid


def _of_a_byte(fit: TransferFit) -> float:
    return 1 / fit.cost.bytes_per_second
