"""Writer groups that said that they reserve nothing more, or whose writers are gone: who follows
one by its name need not wait for it.

A follower may ask before its group has begun, so that a block is not there says nothing by itself.
What is remembered is bounded, of each tenant by itself: who follows a group that was forgotten
waits as long as for one that never said anything.
"""

from __future__ import annotations

GROUPS_MAX = 4_096  # of one tenant; their names may have 1 KiB each


class Forgone:
    """By tenant, those that ended the longest ago first."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, None]] = {}

    def add(self, tenant: str, group: str) -> None:
        groups = self._groups.setdefault(tenant, {})
        groups.pop(group, None)
        groups[group] = None
        if len(groups) > GROUPS_MAX:
            del groups[next(iter(groups))]

    def goes_on(self, tenant: str, group: str) -> None:
        """It reserves again after all."""
        if self.holds(tenant, group):
            del self._groups[tenant][group]

    def holds(self, tenant: str, group: str) -> bool:
        return group in self._groups.get(tenant, ())
