"""Fairness between clients: where there is too little for all, whose requests are let in.

What a client has had lately, in tokens of service (of prompts, and twice those of answers: the
service cost of VTC, Sheng et al., OSDI 2024, section 4), is compared with its fair share: what all
have had together, given out max-min fairly over what they asked for. Who asks for less than that
gets all it asks for; the others get as much as each other.

Nobody is refused by a count. A first token is wanted sooner of those who have had more than their
share, so it is their requests that make the line as long as it may be, and others find it shorter
than they may wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .crowd import LATELY
from .inner import BORROWED, KEPT

OUTPUT_WEIGHT = 2.0  # of a token of an answer
# Who has had a little more finds the line much shorter: where one asks for most of all there is,
# little more for it is much less for others. Found by simulation.
POWER = 10
LEAST = 0.1  # of that: whoever has had all there was may not be shut out


@njit(cache=KEPT, **BORROWED)
def fade(clients: Any, seconds: Any) -> None:
    """So long ago is what was counted. `clients` is [2, client]: tokens asked for, tokens had."""
    kept = np.exp(-max(0.0, seconds) / LATELY)
    for one in range(clients.shape[1]):
        clients[0, one] *= kept
        clients[1, one] *= kept


@njit(cache=KEPT, **BORROWED)
def fair_share(clients: Any) -> Any:
    """The most that a client gets, in tokens: infinite where all got what they asked for.

    The share is raised from an equal one: what those who ask for less leave is the others'.
    """
    had, share, before = 0.0, 0.0, -1.0
    for one in range(clients.shape[1]):
        had += clients[1, one]
    while share > before:
        left, some = had, 0
        for one in range(clients.shape[1]):
            if clients[0, one] <= share:
                left -= clients[0, one]
            else:
                some += 1
        if not some:
            return np.inf
        before, share = share, max(share, left / some)
    return share


@njit(cache=KEPT, **BORROWED)
def used_by(patience: Any, share: Any, had: Any) -> Any:
    """The share of its target that a client's first token may take, where in the mean it is
    `patience`: more for one that has had less than its share, less for one that has had more."""
    if had <= 0.0:
        return 1.0 if share > 0.0 else patience
    return min(1.0, patience * max(LEAST, (share / had) ** POWER))
