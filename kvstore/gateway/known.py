"""Engines that a caller knows of by itself, for when no conductor answers: in turn, and those that
lately went away only where there is no other.

The ones that it was configured with stay; of those it learned of, one that went away is forgotten,
and one that has other weights by now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Set

from kvstore.errors import Unavailable
from kvstore.gateway.needs import RETRY_MS, Needs

KNOWN_MAX = 1_024
REST_SECONDS = 2.0  # of one that went away


class Known:
    """Addresses. Safe to use from several threads."""

    def __init__(self, engines: Iterable[str]) -> None:
        self._fixed = frozenset(engines)
        self._rests_until = dict.fromkeys(engines, 0.0)  # the next one first
        self._lock = threading.Lock()

    def learn(self, address: str) -> None:
        """It is about to be sent something: its turn is the last from now on. Of too many engines
        that were learned of the first in line is forgotten."""
        with self._lock:
            self._rests_until[address] = self._rests_until.pop(address, 0.0)
            learned = (one for one in self._rests_until if one not in self._fixed)
            if len(self._rests_until) > KNOWN_MAX and (first := next(learned, "")):
                del self._rests_until[first]

    def hear(self, addresses: Iterable[str]) -> None:
        """There are these, too: those that are new have their turns behind all others."""
        with self._lock:
            for one in addresses:
                if len(self._rests_until) < KNOWN_MAX:
                    self._rests_until.setdefault(one, 0.0)

    def any(self, needs: Needs) -> bool:
        """Whether one of them has what is needed."""
        with self._lock:
            return any(map(needs.met_at, self._rests_until))

    def forget(self, left: Set[str]) -> None:
        """Those of them that were learned of have no more what they had."""
        with self._lock:
            for one in (self._rests_until.keys() & left) - self._fixed:
                del self._rests_until[one]

    def lost(self, address: str) -> bool:
        """It went away; True where it is forgotten."""
        with self._lock:
            if address in self._fixed:
                self._rests_until[address] = time.monotonic() + REST_SECONDS
                return False
            self._rests_until.pop(address, None)
            return True

    def next(self, gone: Set[str], needs: Needs, lacking: Set[str] = frozenset()) -> str:
        """Whose turn it is, of those that have what is needed and are not gone: of those that said
        that they lack it only where there is no other. Raises `Unable` where there are some and
        none has it, and `Unavailable`."""
        may = needs.met_at
        with self._lock:
            left = [one for one in self._rests_until if one not in gone and may(one)]
            if not left and self._rests_until and not any(map(may, {*self._rests_until, *gone})):
                raise needs.unmet
            if not left:
                text = "no conductor names an engine for it, and no engine is known that does it"
                raise Unavailable(text, RETRY_MS)
            left, now = [one for one in left if one not in lacking] or left, time.monotonic()
            chosen = next((one for one in left if self._rests_until[one] <= now), left[0])
            self._rests_until[chosen] = self._rests_until.pop(chosen)  # to the end of the line
            return chosen
