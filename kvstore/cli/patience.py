"""How long a process that was started is waited for: while it is at work, within a bound.

What it compiles or loads takes so much of a core, and where others want the cores too nobody knows
how long that is.
"""

from __future__ import annotations

import psutil

AT_WORK_SECONDS_MAX = 900.0  # then this machine has no room for it, or it goes round in a circle
# Of a core: who knocks again and again at what does not answer takes less in all the time it has.
WORK_SECONDS = 2.0


class Patience:
    """With one process, from `now` on; `idle_seconds` if it does nothing."""

    def __init__(self, now: float, idle_seconds: float) -> None:
        self._idle_seconds, self._worked = idle_seconds, 0.0
        self._until, self._last = now + idle_seconds, now + max(idle_seconds, AT_WORK_SECONDS_MAX)

    def left(self, now: float, worked: float) -> float:
        """Seconds, once the process has worked for so many in all; 0 or less: it is over."""
        if worked >= self._worked + WORK_SECONDS:
            self._worked, self._until = worked, now + self._idle_seconds
        return min(self._until, self._last) - now

    @property
    def why(self) -> str:
        """What is said of a process with which it is over."""
        if self._until < self._last:
            return f"was not ready, and has done nothing for {self._idle_seconds:.0f} s"
        return f"was not ready in {AT_WORK_SECONDS_MAX:.0f} s, though it was at work"


def worked_seconds(pid: int) -> float:
    """What a process has had of the cores; nothing if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
