"""What a host's link and its SSD carried lately: bytes, and the seconds that they were busy with.

Transfers overlap, and each then takes longer than it would alone. So it is not each that is
measured, but all from when the first begins until none is left: what a line carries while it is
busy is what one more transfer has to wait for. Conductors learn from it what bringing blocks costs.

Pure: the time is told.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.limits import CARRIED_KEPT

BUSY_SECONDS_MAX = 1.0  # of one measure: a line that is never idle is measured too


@dataclass(frozen=True, slots=True)
class Carried:
    """One measure."""

    size_bytes: int
    seconds: float
    of_ssd: bool  # read from the host's SSD, else over its link
    source: str  # id of the node it all came from over the link; empty where it came from several


@dataclass(slots=True)
class Line:
    """A link or an SSD: what is on its way over it."""

    of_ssd: bool
    tell: Callable[[Carried], None]
    _under_way: Counter[str] = field(default_factory=Counter)  # by source
    _since: float = 0.0
    _size_bytes: int = 0
    _sources: set[str] = field(default_factory=set)  # of this measure

    def begin(self, now: float, source: str = "") -> None:
        """A transfer begins."""
        if not self._under_way:
            self._since, self._size_bytes = now, 0
        self._under_way[source] += 1
        self._sources.add(source)

    def end(self, now: float, size_bytes: int, source: str = "") -> None:
        """One from there has ended, and brought so much."""
        assert self._under_way[source], "a transfer ends that did not begin"
        self._under_way[source] -= 1
        if not self._under_way[source]:
            del self._under_way[source]
        self._size_bytes += size_bytes
        seconds = now - self._since
        if self._under_way and seconds < BUSY_SECONDS_MAX:
            return
        if self._size_bytes and seconds > 0:
            alone = next(iter(self._sources)) if len(self._sources) == 1 else ""
            self.tell(Carried(self._size_bytes, seconds, self.of_ssd, alone))
        self._since, self._size_bytes, self._sources = now, 0, set(self._under_way)


class Ledger:
    """The last measures of a host, numbered from 1."""

    def __init__(self) -> None:
        self._kept: deque[Carried] = deque(maxlen=CARRIED_KEPT)
        self.count = 0  # of all there ever were
        self.link, self.ssd = Line(False, self._keep), Line(True, self._keep)

    def since(self, number: int) -> list[Carried]:
        """Those after that number, of those that are kept."""
        some = min(self.count - number, len(self._kept))
        return [self._kept[len(self._kept) - some + i] for i in range(max(0, some))]

    def _keep(self, one: Carried) -> None:
        self._kept.append(one)
        self.count += 1
