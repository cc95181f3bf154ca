"""How crowded a crew is, by what became of the requests that this conductor was asked for: see
`kvstore.kernels.crowd`."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from kvstore.kernels import crowd
from kvstore.kernels.rules import Rules

SERVED_KEPT = 16_384  # some 150 bytes each


class Crowd:
    """Each request counts once: one that was served, and is lost when it is asked for anew, was not
    served after all. Of more than `SERVED_KEPT` either way the first are forgotten."""

    def __init__(self) -> None:
        self._record = np.zeros(1, crowd.CROWD)
        self._served: OrderedDict[str, float] = OrderedDict()  # when
        self._lost: OrderedDict[str, float] = OrderedDict()
        # The share of its target that a first token may take now: every decision asks for it.
        self.patience: float = crowd.used(self._record)

    def presses(self, rules: Rules) -> bool:
        """Whether first tokens are wanted sooner for it."""
        return bool(rules.hurry) and self.patience < 1.0

    def look(self, now: float) -> None:
        """Nothing has become of any request for a while, maybe: what is lately then was before."""
        if self.patience < 1.0:
            faded = self._record.copy()
            kept = np.exp(-max(0.0, now - float(faded["since"][0])) / crowd.LATELY)
            faded["lost"] *= kept
            faded["all"] *= kept
            self.patience = crowd.used(faded)

    def served(self, request: str, now: float) -> None:
        if self.has_served(request, now):
            return
        self.patience = crowd.ended(self._record, 0.0, now)
        self._lost.pop(request, None)
        _keep(self._served, request, now)

    def has_served(self, request: str, now: float) -> bool:
        """Whether it counts as one that was."""
        return now - self._served.get(request, float("-inf")) < crowd.LATELY

    def lost(self, request: str, now: float) -> None:
        """It was refused, or given up; maybe both, one after the other."""
        if now - self._lost.get(request, float("-inf")) < crowd.LATELY:
            return
        if self.has_served(request, now):
            self.patience = crowd.lost_after_all(self._record, now)
            del self._served[request]
        else:
            self.patience = crowd.ended(self._record, 1.0, now)
        _keep(self._lost, request, now)

    @property
    def counted(self) -> tuple[float, float]:
        """Of those lately, how many were lost, and how many there were."""
        return float(self._record["lost"][0]), float(self._record["all"][0])


def _keep(line: OrderedDict[str, float], request: str, now: float) -> None:
    line[request] = now
    line.move_to_end(request)
    if len(line) > SERVED_KEPT:
        line.popitem(last=False)
