"""Whose call goes next, decided so that no tenant can keep the others out.

Three rules. Of a server's places of one kind a tenant gets one more while it holds less than three
times as many as are free: alone it gets three quarters, and whoever comes next still finds some
(the dynamic threshold of shared-buffer switches). Those who wait are let in a tenant at a
time, in turn. And a tenant that calls more often than its rate is told when to come again, if
others call too: alone it may have everything.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_PATIENCE = 3  # places held for each that is free
CONTENDED_SECONDS = 1.0  # another tenant's last call is not longer ago


class Places:
    """So many places, and who holds how many of them."""

    def __init__(self, total: int) -> None:
        self.total, self.free = total, total
        self._held: Counter[str] = Counter()

    def held(self, who: str) -> int:
        return self._held[who]

    def try_take(self, who: str, count: int = 1) -> bool:
        """Take a place, or so many together, if this tenant may have one more up to the last."""
        if self._held[who] + count - 1 >= _PATIENCE * (self.free - count + 1):
            return False
        self._held[who] += count
        self.free -= count
        return True

    def give_back(self, who: str, count: int = 1) -> None:
        assert self._held[who] >= count, "a place was given back that nobody holds"
        self._held[who] -= count
        self.free += count
        if not self._held[who]:
            del self._held[who]

    def check(self) -> None:
        assert 0 <= self.free <= self.total
        assert self.free + self._held.total() == self.total, "a place that nobody accounts for"


class Line(Generic[T]):
    """Who waits, tenant by tenant: each tenant's in the order they came, the tenants in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # in the order of their turns

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def has(self, who: str) -> bool:
        return who in self._waiting

    def join(self, who: str, one: T) -> None:
        self._waiting.setdefault(who, deque()).append(one)

    def stay_first(self, who: str, one: T) -> None:
        """It had its turn, and there is nothing for it yet."""
        self._waiting.setdefault(who, deque()).appendleft(one)
        self._waiting.move_to_end(who, last=False)

    def next(self) -> T:
        """Take out whose turn it is of those that wait: its tenant is the last from now on."""
        who, queue = self._waiting.popitem(last=False)
        one = queue.popleft()
        if queue:
            self._waiting[who] = queue
        return one

    def leave(self, who: str, one: T) -> None:
        """Whoever gave up waiting. It may have been let in already."""
        queue = self._waiting.get(who)
        if queue is not None and one in queue:
            queue.remove(one)
            if not queue:
                del self._waiting[who]

    def let_in(self, places: Places) -> Iterator[tuple[str, T]]:
        """Those whose turn it is, and whose they are; each has a place now."""
        passed = 0
        while passed < len(self._waiting):
            who, queue = next(iter(self._waiting.items()))
            del self._waiting[who]  # it is the last in turn from now on
            if places.try_take(who):
                passed, one = 0, queue.popleft()
                if queue:
                    self._waiting[who] = queue
                yield who, one
            else:
                passed += 1
                self._waiting[who] = queue


class Rates:
    """Calls that each tenant may still make, which grow with time: a token bucket for each."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left: dict[str, tuple[float, float]] = {}  # tenant -> calls left, as of when

    def spend(self, who: str, now: float, owing: float = 0.0) -> float:
        """Count one call. Seconds after which to come again; 0 if it may go on, as it may while no
        more than `owing` calls are owed."""
        return self._spend(who, now, 1, 1.0, owing)

    def spend_more(self, who: str, now: float, calls: int, owing: float = 0.0) -> float:
        """The same of what a call that was counted costs, as much as so many more. Where that is
        more than is left those that follow wait for it, and it waits only for what is owed by
        others: so many small ones keep no large one out."""
        return self._spend(who, now, calls, 0.0, owing)

    def _spend(self, who: str, now: float, calls: int, least: float, owing: float) -> float:
        left, then = self._left.pop(who, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        # Whoever called last stands last, so one look tells whether anybody else calls.
        other = next(reversed(self._left.values()), None)
        contended = other is not None and now - other[1] <= CONTENDED_SECONDS
        refused = left + owing < least and contended
        spent = 0 if refused else calls
        self._left[who] = (left - spent if contended else max(0.0, left - spent), now)
        self._forget(now)
        return (1.0 - owing - left) / self._per_second if refused else 0.0

    def _forget(self, now: float) -> None:
        """Those whose bucket is full again, and who do not count as calling any more. Each call
        adds one at most and looks at two, so there are never many."""
        for _ in range(2):
            who, (left, then) = next(iter(self._left.items()))
            full = left + (now - then) * self._per_second >= self._burst
            if not full or now - then <= CONTENDED_SECONDS:
                return
            if len(self._left) > 1:
                del self._left[who]
