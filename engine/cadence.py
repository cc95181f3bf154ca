"""When to look again for the next layer of a prefill that is followed.

Layers land at an even pace, so an engine with nothing else to do sleeps through most of the time
between two of them and looks often only around the moment the next is due. Looking all the time
would take the very cores that the prefill computes on.
"""

from __future__ import annotations

SOON_SECONDS = 2e-4  # between looks while a layer is due
LATER_SECONDS = 2e-3  # the longest sleep: a new request may have come
EARLY, LATE = 0.75, 1.5  # a layer is due from here to here, in intervals since the last


class Cadence:
    """The pace at which layers land. Time is an argument: monotonic seconds."""

    def __init__(self) -> None:
        self._last = 0.0
        self._interval = 0.0

    def landed(self, now: float) -> None:
        """Something was loaded just now."""
        gap = now - self._last
        # The newest gap counts most: a prefill's first layers may wait for its look-up.
        self._interval = gap if self._interval == 0.0 else (self._interval + 3 * gap) / 4
        self._last = now

    def pause(self, now: float) -> float:
        """Seconds to sleep before looking again."""
        waited = now - self._last
        due = EARLY * self._interval
        if waited < due:
            return min(LATER_SECONDS, max(SOON_SECONDS, due - waited))
        if waited < LATE * self._interval + SOON_SECONDS:
            return SOON_SECONDS
        return LATER_SECONDS
