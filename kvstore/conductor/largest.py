"""For how many tokens of KV the largest engine of a crew has room: of those that prefill now, or
decode, and of those that could, or left a while ago and may be back.

Pure. What only the first cannot hold is to be asked for again; what the others cannot either is
asked for in vain, once all have had the time to report: a conductor that begins, or heard of nobody
for a while, is told of them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvstore.conductor.facts import Facts
from kvstore.limits import CREW_GATHERS_SECONDS

BACK_SECONDS = 600.0  # that an engine which left may take to come back, if it does


class Largest:
    """Of one crew, whose first engine reports now, for one of both phases."""

    def __init__(
        self, could: Callable[[Facts], object], does: Callable[[Facts], bool], now: float
    ) -> None:
        self._can, self._does, self._began = could, does, now
        self.now = self._could = self._gone = 0
        self._since = float("-inf")  # when that left

    def look(self, engines: Iterable[Facts]) -> None:
        """These are all there are."""
        self.now = self._could = 0
        for one in engines:
            if self._can(one) is not None:
                self._could = max(self._could, one.room_tokens)
            if self._does(one):
                self.now = max(self.now, one.room_tokens)

    def left(self, one: Facts, now: float) -> None:
        if self._can(one) is not None and one.room_tokens >= self._back(now):
            self._gone, self._since = one.room_tokens, now

    def lately(self, now: float) -> int:
        return max(self._could, self._back(now))

    def gathers(self, now: float) -> bool:
        """Larger ones may be there that did not report yet."""
        return now < self._began + CREW_GATHERS_SECONDS

    def _back(self, now: float) -> int:
        return self._gone if now < self._since + BACK_SECONDS else 0
