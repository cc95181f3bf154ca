"""Held blocks behind a hole, by whose they are: whoever makes room asks for one owner and tenant,
and does not pass those of the others.

Of all together the order is that in which they came to be unlisted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from itertools import count
from operator import itemgetter

from kvstore.core.lifecycle import Owner, Slot

Line = OrderedDict[bytes, int]  # by stored key: the number of its coming, the least first


class Unlisted:
    """Stored keys, the longest unlisted first."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Owner, str], Line] = {}  # none is empty
        self._numbers = count()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[bytes]:
        return self.of(None, None)

    def __reversed__(self) -> Iterator[bytes]:
        lines = [reversed(line.items()) for line in self._lines.values()]
        return (key for key, _ in merge(*lines, key=itemgetter(1), reverse=True))

    def __contains__(self, slot: Slot) -> bool:
        return slot.key in self._lines.get((slot.owner, slot.tenant), ())

    def add(self, slot: Slot) -> None:
        """It is not here yet."""
        line = self._lines.setdefault((slot.owner, slot.tenant), OrderedDict())
        line[slot.key] = next(self._numbers)

    def discard(self, slot: Slot) -> None:
        place = (slot.owner, slot.tenant)
        line = self._lines.get(place)
        if line is not None and line.pop(slot.key, None) is not None and not line:
            del self._lines[place]

    def of(self, owner: Owner | None, tenant: str | None) -> Iterator[bytes]:
        """Those of one owner, of one tenant, of both, or all."""
        if owner is not None and tenant is not None:
            return iter(self._lines.get((owner, tenant), ()))
        lines = [
            line.items()
            for (whose, name), line in self._lines.items()
            if owner in (None, whose) and tenant in (None, name)
        ]
        return (key for key, _ in merge(*lines, key=itemgetter(1)))
