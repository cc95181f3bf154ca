"""When to look again for the next layer of a prefill that is followed.

Layers land at an even pace, so a follower sleeps through most of the time until the next is due,
and from then on looks the more seldom the longer it has waited. Looking all the time would take the
very cores that the prefill computes on, and at two nodes.
"""

from __future__ import annotations

EARLY = 0.75  # of the interval between two layers: from then on the next is due
OFTEN = 1 / 16  # of what was waited: a layer is found no later than that
NEW_SECONDS = 1.0  # after so long without a layer it is another prefill's that comes


class Cadence:
    """The pace at which layers land. Time is an argument: monotonic seconds."""

    def __init__(self, soon: float, later: float, now: float) -> None:
        """Seconds between two looks, the least and the most."""
        self._soon, self._later = soon, later
        self._last = now
        self._begun = False  # something of this prefill has landed
        self._interval = 0.0

    def landed(self, now: float, layers: int) -> None:
        """So many were found just now."""
        gap, self._last = now - self._last, now
        if not self._begun or gap > NEW_SECONDS:
            self._begun, self._interval = True, 0.0  # how long the first takes says nothing
            return
        each = gap / layers
        self._interval = (self._interval + 3 * each) / 4 if self._interval else each

    def pause(self, now: float) -> float:
        """Seconds to sleep before looking again."""
        waited = now - self._last
        wanted = max(EARLY * self._interval - waited, OFTEN * waited)
        return min(self._later, max(self._soon, wanted))
