"""Engines that said of themselves that they leave: callers that know one without a plan are to
hear of it. For a while, as they ask every second; and of no more than can report.
"""

from __future__ import annotations

from kvstore.limits import REPORTS_MAX

LEFT_SECONDS = 300.0


class Left:
    """Addresses, by tenant. Pure: it is told the time."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, float]] = {}  # who left last stands last

    def of(self, tenant: str, now: float) -> set[str]:
        return {one for one, until in self._until.get(tenant, {}).items() if now < until}

    def add(self, tenant: str, address: str, now: float) -> None:
        """Of too many the one that left first is forgotten, of the tenant that has most."""
        self.discard(tenant, address)
        self._until.setdefault(tenant, {})[address] = now + LEFT_SECONDS
        if sum(map(len, self._until.values())) > REPORTS_MAX:
            most = max(self._until, key=lambda one: len(self._until[one]))
            self.discard(most, next(iter(self._until[most])))

    def discard(self, tenant: str, address: str) -> None:
        """One reports there."""
        mine = self._until.get(tenant, {})
        mine.pop(address, None)
        if not mine:
            self._until.pop(tenant, None)
