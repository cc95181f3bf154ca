"""Which servers said lately that they have not a LoRA adapter: they are not soon asked again.

Bounded. A server may load one at any time, so what is remembered of it is soon forgotten.
"""

from __future__ import annotations

import threading
import time

KEPT_SECONDS = 30.0
_MOST = 4_096  # servers, each for one adapter


class Lacking:
    """Addresses by adapter. Safe to use from several threads."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}  # the one that is over first, first
        self._lock = threading.Lock()

    def add(self, adapter: str, address: str) -> None:
        with self._lock:
            self._until.pop((adapter, address), None)
            self._until[adapter, address] = time.monotonic() + KEPT_SECONDS
            if len(self._until) > _MOST:
                del self._until[next(iter(self._until))]

    def of(self, adapter: str) -> set[str]:
        if not adapter:
            return set()  # all have that
        now = time.monotonic()
        with self._lock:
            for one in list(self._until):
                if self._until[one] > now:
                    break
                del self._until[one]
            return {address for name, address in self._until if name == adapter}
