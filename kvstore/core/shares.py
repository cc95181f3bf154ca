"""What each tenant has of each tier, what is its due, and who makes room for whom.

Weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2): a tenant's level is what
it has, over its weight. Room for a tenant is made by those whose level is above the level that it
then has, the highest first, and by itself: so a tenant may use all that nobody wants, and one that
keeps to its due loses nothing to one that does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvstore.core.lifecycle import Tier


@dataclass(frozen=True, slots=True)
class Share:
    """What an operator grants one tenant."""

    weight: float = 1.0
    bytes_max: int | None = None  # of each tier, whoever else has how little


FAIR = Share()


class Shares:
    """Bytes of slots in use, by tier and tenant."""

    def __init__(self, granted: Mapping[str, Share] | None = None) -> None:
        self.granted = dict(granted or {})  # tenants that are not named have a `FAIR` share
        self._used: dict[Tier, Counter[str]] = {tier: Counter() for tier in Tier}

    def take(self, tier: Tier, tenant: str, size: int) -> None:
        self._used[tier][tenant] += size

    def give(self, tier: Tier, tenant: str, size: int) -> None:
        used = self._used[tier]
        used[tenant] -= size
        assert used[tenant] >= 0, "a tenant gives back more than it had"
        if not used[tenant]:
            del used[tenant]

    def used(self, tier: Tier) -> Mapping[str, int]:
        return self._used[tier]

    def excess(self, tier: Tier, tenant: str, more: int) -> int:
        """Bytes by which a tenant that takes so many more passes the most it may have."""
        most = self.granted.get(tenant, FAIR).bytes_max
        return 0 if most is None else self._used[tier][tenant] + more - most

    def never(self, tenant: str, size: int) -> bool:
        """Whether so many bytes of one tier are more than a tenant may ever have there."""
        most = self.granted.get(tenant, FAIR).bytes_max
        return most is not None and size > most

    def payers(self, tier: Tier, tenant: str, more: int) -> Iterator[tuple[str, int | None]]:
        """Who makes room for so many bytes more, in order, and how many bytes each pays at most."""
        used = self._used[tier]
        if len(used) == 1 and tenant in used:
            yield tenant, None
            return
        level = (used[tenant] + more) / self._weight(tenant)
        levels = {name: size / self._weight(name) for name, size in used.items() if name != tenant}
        for name in sorted(levels, key=lambda one: (-levels[one], one)):
            if levels[name] > level:
                yield name, int((levels[name] - level) * self._weight(name))
        yield tenant, None

    def _weight(self, tenant: str) -> float:
        return self.granted.get(tenant, FAIR).weight
