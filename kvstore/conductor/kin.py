"""What a prefill costs at each engine: what its own reports say, and what those of its kin do.

Engines that began with the same prior are kin, and differ little: reports that scatter set one
apart from the others only as far as there are many of them, since a choice that takes chance for a
slow engine sends all that is new to another, whose memory then drops what both could hold. By how
far, is what a normal model of both spreads says (Gelman et al., Bayesian Data Analysis, 3rd
edition, section 5.4): a share of V / (V + E), for E the variance of what was measured and V that of
what the others say of it.

An engine that is sent nothing says nothing of what it takes. What was learned of it under another
load would keep all work from it for as long, however idle it is. So of one that is silent only how
it differed from its kin is believed, and that less and less; one that has just come costs what they
do. One that is slower for good is tried again now and then, and then it is known again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvstore.core.cost import PrefillCost

SILENT_SECONDS = 20.0  # after which a third of what sets an engine apart is left
SHOWN_SECONDS = 60.0  # over which reports are counted
APART = 0.05  # by what share kin differ, mostly, where nothing is wrong with any
TOKENS = 4096.0  # of the prompt by which costs are compared
_HEARD = 0.05  # of what sets it apart: who has less left says nothing of others


class Kin:
    """Engines by row. Levels are logarithms of what the prompt takes."""

    def __init__(self) -> None:
        self._learned = np.ones((0, 3))  # a, b and c of seconds = a + b n + c n (n + 2 prefix)
        self._kinds = np.zeros(0, np.int64)
        self._spoke = np.zeros(0)  # when it was last measured
        self._shown = np.zeros(0)  # reports until then, those that faded in part
        self._taken = np.zeros(0, np.int64)  # reports, all of them
        self._scatter = np.zeros(0)  # of these: usual relative error
        self._kin = np.zeros(0)  # where the others are by the last `costs`; NaN: none counts
        self._variance = np.zeros(0)  # in which that says what it is itself, in APART squared
        self._level = np.zeros(0)  # that it is thought to be at
        self._apart = np.zeros(0)  # above its kin, as was believed when it spoke
        self._seen = np.zeros(0, np.bool_)  # nothing was learned since

    def grow(self, rows: int) -> None:
        more = rows - len(self._kinds)
        self._learned = np.vstack([self._learned, np.ones((more, 3))])
        for name, held in vars(self).items():
            if held is not self._learned:
                setattr(self, name, np.append(held, np.zeros(more, held.dtype)))

    def enter(self, row: int, cost: PrefillCost, like: int | None) -> None:
        """Nothing was measured of it yet; `like` is the row of one of its kin, if there is any."""
        self._kinds[row] = self._kinds.max() + 1 if like is None else self._kinds[like]
        self._learned[row], self._spoke[row] = (cost.a, cost.b, cost.c), -math.inf
        self._level[row] = self._levels(np.array([row]))[0]
        self._shown[row] = self._taken[row] = self._scatter[row] = 0
        self._kin[row], self._variance[row] = math.nan, 1.0
        self._apart[row], self._seen[row] = 0.0, True

    def learn(
        self, row: int, cost: PrefillCost, taken: int, scatter: float, now: float
    ) -> PrefillCost:
        """It was measured: by so many reports in all, whose usual relative error is `scatter`. What
        to reckon with until `costs` looks at its kin again."""
        kept = math.exp(-max(now - self._spoke[row], 0.0) / SHOWN_SECONDS)
        self._shown[row] = kept * self._shown[row] + taken - self._taken[row]
        self._taken[row], self._scatter[row] = taken, scatter
        self._learned[row], self._spoke[row] = (cost.a, cost.b, cost.c), now
        self._seen[row] = False
        rows = np.array([row])
        measured = self._levels(rows), self._known(rows, now), self._error(rows)
        a, b, c = self._reckoned(rows, *measured)[0].tolist()
        return PrefillCost(a, b, c)

    def silent(self, rows: NDArray[np.int64], now: float) -> bool:
        """Whether what these take was measured so long ago that it may have changed."""
        return bool((self._spoke[rows] < now - SHOWN_SECONDS).all())

    def costs(self, rows: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Of these: a, b and c to reckon with."""
        own, known, error = self._levels(rows), self._known(rows, now), self._error(rows)
        weights = np.where(known > _HEARD, known, 0.0) / (1.0 + error)
        self._kin[rows], self._variance[rows] = _of_others(own, weights, self._kinds[rows])
        found = self._reckoned(rows, own, known, error)
        self._seen[rows] = True
        return found

    def _reckoned(
        self,
        rows: NDArray[np.int64],
        own: NDArray[np.float64],
        known: NDArray[np.float64],
        error: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """By where their kin were when they were last looked at."""
        kin, variance = self._kin[rows], self._variance[rows]
        heard, spoke = np.isfinite(kin), ~self._seen[rows]
        share = variance / (variance + error)
        believed = np.where(heard, share * (own - kin), 0.0)
        self._apart[rows] = np.where(spoke, believed, self._apart[rows])
        alone = np.where(spoke, own, self._level[rows])
        followed = kin + known * self._apart[rows]
        self._level[rows] = np.where(heard, followed, alone)
        found: NDArray[np.float64] = self._learned[rows] * np.exp(self._level[rows] - own)[:, None]
        return found

    def _known(self, rows: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Of what set each apart when it spoke, what is believed still."""
        found: NDArray[np.float64] = np.exp(
            -np.maximum(now - self._spoke[rows], 0.0) / SILENT_SECONDS
        )
        return found

    def _error(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Variance of what was measured of each, in APART squared."""
        error = (self._scatter[rows] / APART) ** 2 / np.maximum(self._shown[rows], 1.0)
        return np.asarray(error)

    def _levels(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        levels: NDArray[np.float64] = np.log(self._learned[rows] @ [1.0, TOKENS, TOKENS * TOKENS])
        return levels


def _of_others(
    levels: NDArray[np.float64], weights: NDArray[np.float64], kinds: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each, the mean level of its kin but itself, NaN where none of those counts; and the
    variance with which that says what its own is, in that of kin."""
    _, kind = np.unique(kinds, return_inverse=True)
    counted = np.bincount(kind, weights > 0.0)[kind] - (weights > 0.0)
    left = np.bincount(kind, weights)[kind] - weights
    total = np.bincount(kind, weights * levels)[kind] - weights * levels
    found, variance = np.full(len(levels), np.nan), np.ones(len(levels))
    np.divide(total, left, out=found, where=counted > 0)
    np.divide(1.0, left, out=variance, where=counted > 0)
    return found, 1.0 + variance
