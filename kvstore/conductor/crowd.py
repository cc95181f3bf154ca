"""How crowded a crew is, by what became of the requests that this conductor was asked for: see
`kvstore.kernels.crowd`."""

from __future__ import annotations

import numpy as np

from kvstore.kernels import crowd
from kvstore.kernels.rules import Rules


class Crowd:
    """Each request counts once."""

    def __init__(self) -> None:
        self._record = np.zeros(1, crowd.CROWD)
        self._told()

    def presses(self, rules: Rules) -> bool:
        """Whether first tokens are wanted sooner for it."""
        return bool(rules.hurry) and self.patience < 1.0

    def served(self, now: float) -> None:
        crowd.ended(self._record[0], 0.0, now)
        self._told()

    def lost(self, now: float) -> None:
        """It was refused, or given up."""
        crowd.ended(self._record[0], 1.0, now)
        self._told()

    def lost_after_all(self, now: float) -> None:
        """One that had counted as served."""
        crowd.lost_after_all(self._record[0], now)
        self._told()

    @property
    def counted(self) -> tuple[float, float]:
        """Of those lately, how many were lost, and how many there were."""
        return float(self._record["lost"][0]), float(self._record["all"][0])

    def _told(self) -> None:
        # The share of its target that a first token may take now: every decision asks for it.
        self.patience = float(crowd.used(self._record[0]))
