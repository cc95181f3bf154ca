"""What prefills cost an engine that says nothing: what they cost its kin by now.

An engine that is sent nothing says nothing of what it takes. What was learned of it under another
load would keep all work from it for as long, however idle it is. So of one that is silent only how
it differed from its kin, those that began with the same prior, is believed, and that less and less;
one that has just come costs what they do. One that is slower for good is tried again now and then,
and then it is known again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvstore.core.cost import PrefillCost

SILENT_SECONDS = 20.0  # after which a third of what sets an engine apart is left
TOKENS = 4096.0  # of the prompt by which costs are compared
_HEARD = 0.05  # of what sets it apart: who has less left says nothing of others


class Kin:
    """Engines by row. Levels are logarithms of what the prompt takes."""

    def __init__(self) -> None:
        self._learned = np.ones((0, 3))  # a, b and c of seconds = a + b n + c n (n + 2 prefix)
        self._kinds = np.zeros(0, np.int64)
        self._spoke = np.zeros(0)  # when it was last measured
        self._level = np.zeros(0)  # that it is thought to be at
        self._apart = np.zeros(0)  # above its kin, when it spoke
        self._seen = np.zeros(0, np.bool_)  # nothing was learned since

    def grow(self, rows: int) -> None:
        more = rows - len(self._kinds)
        self._learned = np.vstack([self._learned, np.ones((more, 3))])
        for name in ("_kinds", "_spoke", "_level", "_apart", "_seen"):
            held = getattr(self, name)
            setattr(self, name, np.append(held, np.zeros(more, held.dtype)))

    def enter(self, row: int, cost: PrefillCost, like: int | None) -> None:
        """Nothing was measured of it yet; `like` is the row of one of its kin, if there is any."""
        self._kinds[row] = self._kinds.max() + 1 if like is None else self._kinds[like]
        self._learned[row], self._spoke[row] = (cost.a, cost.b, cost.c), -math.inf
        self._level[row] = self._levels(np.array([row]))[0]
        self._apart[row], self._seen[row] = 0.0, True

    def learn(self, row: int, cost: PrefillCost, now: float) -> None:
        """It was measured."""
        self._learned[row], self._spoke[row] = (cost.a, cost.b, cost.c), now
        self._seen[row] = False

    def costs(self, rows: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Of these: a, b and c to reckon with."""
        own = self._levels(rows)
        known = np.exp(-np.maximum(now - self._spoke[rows], 0.0) / SILENT_SECONDS)
        kin = _of_others(own, np.where(known > _HEARD, known, 0.0), self._kinds[rows])
        heard, spoke = np.isfinite(kin), ~self._seen[rows]
        self._apart[rows] = np.where(spoke, np.where(heard, own - kin, 0.0), self._apart[rows])
        followed = np.where(heard, kin + known * self._apart[rows], self._level[rows])
        self._level[rows] = np.where(spoke, own, followed)
        self._seen[rows] = True
        found: NDArray[np.float64] = self._learned[rows] * np.exp(self._level[rows] - own)[:, None]
        return found

    def _levels(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        levels: NDArray[np.float64] = np.log(self._learned[rows] @ [1.0, TOKENS, TOKENS * TOKENS])
        return levels


def _of_others(
    levels: NDArray[np.float64], weights: NDArray[np.float64], kinds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """For each, the mean level of its kin but itself; NaN where none of those counts."""
    _, kind = np.unique(kinds, return_inverse=True)
    counted = np.bincount(kind, weights > 0.0)[kind] - (weights > 0.0)
    left = np.bincount(kind, weights)[kind] - weights
    total = np.bincount(kind, weights * levels)[kind] - weights * levels
    found = np.full(len(levels), np.nan)
    np.divide(total, left, out=found, where=counted > 0)
    return found
