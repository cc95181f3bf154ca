"""What was lately decided, by tenant and request: so many in all. A tenant that asks without end
takes nobody's share of them: whoever has more than that loses its own oldest."""

from __future__ import annotations

from collections import OrderedDict

from kvstore.conductor.decision import Decision


class Decided:
    """Of at most `most` requests."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._of: dict[str, OrderedDict[str, Decision]] = {}  # by tenant, the oldest first

    def __len__(self) -> int:
        return self._count

    def get(self, tenant: str, request: str) -> Decision | None:
        mine = self._of.get(tenant)
        return None if mine is None else mine.get(request)

    def keep(self, tenant: str, decision: Decision) -> None:
        mine = self._of.get(tenant)
        if mine is None:
            mine = self._of[tenant] = OrderedDict()
        self._count += decision.request not in mine
        mine[decision.request] = decision
        mine.move_to_end(decision.request)
        if self._count > self._most:
            self._forget_one(tenant)

    def _forget_one(self, tenant: str) -> None:
        """The oldest of this tenant, if it has its share, else of who has the most."""
        if len(self._of[tenant]) * len(self._of) <= self._most:
            tenant = max(self._of, key=lambda one: len(self._of[one]))
        self._of[tenant].popitem(last=False)
        self._count -= 1
        if not self._of[tenant]:
            del self._of[tenant]
