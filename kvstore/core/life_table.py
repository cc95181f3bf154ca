"""How long blocks of each kind lie before they are used again, and what keeping one is worth.

A life table in the manner of Kaplan and Meier (1958): of each kind and age it counts how many
blocks came to that age unused, whether still held or evicted, and how many were used at it. What
leaves for another reason is no longer counted as coming to an age, and old counts fade.

`worth` is the index of Gittins (1979): of all times tau to wait, the highest ratio of the chance
that the block is used within tau to the time it is then held. While nothing is known it is 0 for
all. A kind of which little is known is taken for half as good as all kinds are together.

Time is counted in uses of blocks, in ticks of `TICK`. All of one kind whose use fell into one tick
come to an age together, so a tick costs one addition for each age, however many blocks there are.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from kvstore.kernels.keeping import (
    AGES,
    DOUBT,
    FADE,
    KNOWN,
    STARTS,
    TICKS_MAX,
    WIDTHS,
)


class LifeTable:
    """Counts of `kinds` kinds of block by age."""

    def __init__(self, kinds: int) -> None:
        self.tick = 0
        self._came = np.zeros((kinds, AGES))
        self._used = np.zeros((kinds, AGES))
        # Of the blocks last used in a tick, how many are unused since. A ring: rows are of ticks.
        self._waiting = np.zeros((TICKS_MAX, kinds))
        self._fresh = [0] * kinds  # of this tick, that are not counted there yet
        self._starts = np.array(STARTS)
        self._widths = np.array(WIDTHS)

    def age(self, since: int) -> int:
        """The age class of what was last used in tick `since`."""
        return bisect_right(STARTS, self.tick - since) - 1

    def wait(self, kind: int, count: int = 1) -> None:
        """So many blocks of this kind were used in this tick and wait for their next use."""
        self._fresh[kind] += count

    def use(self, kind: int, since: int) -> None:
        """One that waited since that tick is used."""
        if self.lose(kind, since):
            self._used[kind, self.age(since)] += 1

    def lose(self, kind: int, since: int) -> bool:
        """One that waited is watched no longer; False if it had waited too long to be known."""
        if self.tick - since >= TICKS_MAX:
            return False
        self._waiting[since % TICKS_MAX, kind] -= 1
        return True

    def pass_tick(self) -> None:
        self._count_fresh()
        self.tick += 1
        reached = self._starts[1:][self._starts[1:] <= self.tick]
        rows = (self.tick - reached) % TICKS_MAX
        self._came[:, 1 : 1 + len(reached)] += self._waiting[rows].T
        self._waiting[self.tick % TICKS_MAX] = 0

    def worth(self) -> NDArray[np.float64]:
        """Chance of a use for each use of blocks that one is held, by kind and age. Fades."""
        self._count_fresh()
        all_kinds = self._used.sum(0) / np.maximum(self._came.sum(0), 1e-9)
        rate = (self._used + KNOWN * DOUBT * all_kinds) / (self._came + KNOWN)
        rate = np.clip(rate, 0, 1)
        best = np.zeros((len(rate), AGES))
        for age in range(AGES):
            chance = rate[:, age:]
            unused = np.cumprod(1 - chance, axis=1)
            there = np.hstack([np.ones((len(rate), 1)), unused[:, :-1]])
            used = np.cumsum(there * chance, axis=1)
            # One that is used within an age class is held for half of it, on average.
            held = np.cumsum(there * (1 - chance / 2) * self._widths[age:], axis=1)
            best[:, age] = (used / held).max(axis=1)
        self._used *= FADE
        self._came *= FADE
        return best

    def check(self) -> None:
        self._count_fresh()
        assert (self._waiting >= 0).all(), "more were used than waited"
        assert (self._came >= 0).all() and (self._used >= 0).all()

    def _count_fresh(self) -> None:
        self._waiting[self.tick % TICKS_MAX] += self._fresh
        self._came[:, 0] += self._fresh
        self._fresh = [0] * len(self._fresh)
