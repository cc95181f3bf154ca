"""How crowded a fleet is: which share of requests it lately had to refuse or drop, and how soon a
first token is wanted for that.

Waiting in line is good where a burst is waited out. Where most are refused whatever happens, a line
only makes those late who are served: it is kept short then, and as many are served as before. It is
the thought of controlled delay (CoDel, ACM Queue 10(5), 2012), by what is refused and not by what
waits: at the rate at which a tenth is refused there is always a line, and it is of use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, KEPT, inner

LATELY = 60.0  # seconds over which the share is a mean
# Refused: up to the first share all of the target is used, from the second on the least of it.
# Services plan for a tenth. Found by simulation: see `bench goodput`.
CALM, CROWDED = 0.3, 0.6
LEAST = 0.1

# Of a fleet there is one, in an array of one: what Python calls takes an array apart in a third of
# the time that it takes a record.
CROWD = np.dtype(
    [
        ("lost", np.float64),  # requests refused or dropped lately,
        ("all", np.float64),  # of so many,
        ("since", np.float64),  # by then
    ],
    align=True,
)


@inner
def _used(crowd: Any) -> Any:
    refused = crowd.lost / max(10.0, crowd.all)
    left = (CROWDED - refused) / (CROWDED - CALM)
    return min(1.0, max(LEAST, LEAST + left * (1.0 - LEAST)))


@njit(cache=KEPT, **BORROWED)
def used(crowds: Any) -> Any:
    """The share of its target that a first token may take now. One alone that is refused makes no
    crowd."""
    return _used(crowds[0])


@njit(cache=KEPT, **BORROWED)
def ended(crowds: Any, lost: Any, now: Any) -> Any:
    """A request was let in (0.0) or lost (1.0); what is `used` from then on."""
    crowd = crowds[0]
    kept = np.exp(-max(0.0, now - crowd.since) / LATELY)
    crowd.lost = crowd.lost * kept + lost
    crowd.all = crowd.all * kept + 1.0
    crowd.since = max(now, crowd.since)
    return _used(crowd)


@njit(cache=KEPT, **BORROWED)
def lost_after_all(crowds: Any, now: Any) -> Any:
    """One that had counted as let in; likewise."""
    ended(crowds, 1.0, now)
    crowds[0].all -= 1.0
    return _used(crowds[0])
