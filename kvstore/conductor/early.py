"""Requests that an engine said to decode before another said to prefill them. Each reports on a
stream of its own, and one overtakes the other where this conductor sent neither of them anything:
what is told of such a prompt after that wants no room, for it has some.

Pure, and bounded: what was said first is forgotten first, and all of it after some seconds.
"""

from __future__ import annotations

from kvstore.limits import SENT_SECONDS

KEPT = 4_096  # some 200 bytes each


class Early:
    """Of one crew."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # the first to be over first

    def __len__(self) -> int:
        return len(self._until)

    @property
    def _first(self) -> str:
        return next(iter(self._until))

    def add(self, request: str, now: float) -> None:
        self.forget(request)
        self._until[request] = now + SENT_SECONDS
        while len(self._until) > KEPT or self._until[self._first] <= now:
            del self._until[self._first]

    def has(self, request: str, now: float) -> bool:
        return self._until.get(request, now) > now

    def forget(self, request: str) -> None:
        """It is sent anew."""
        self._until.pop(request, None)
