"""What was lately decided, by whose engines and request: so many in all. A tenant that asks without
end takes nobody's share of them: whoever has more than that loses its own oldest.

An id is a caller's own: in another namespace it is another request's.
"""

from __future__ import annotations

from collections import OrderedDict

from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Decision


class Decided:
    """Of at most `most` requests."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        # By tenant, the oldest first.
        self._of: dict[str, OrderedDict[tuple[Whose, str], Decision]] = {}

    def __len__(self) -> int:
        return self._count

    def get(self, whose: Whose, request: str) -> Decision | None:
        mine = self._of.get(whose[0])
        return None if mine is None else mine.get((whose, request))

    def latest(self, tenant: str, request: str) -> Decision | None:
        """Of the requests that a tenant calls so, in whatever namespaces, the last."""
        every = reversed(self._of.get(tenant, OrderedDict()).values())
        return next((one for one in every if one.request == request), None)

    def keep(self, whose: Whose, decision: Decision) -> None:
        tenant, known = whose[0], (whose, decision.request)
        mine = self._of.get(tenant)
        if mine is None:
            mine = self._of[tenant] = OrderedDict()
        self._count += known not in mine
        mine[known] = decision
        mine.move_to_end(known)
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
