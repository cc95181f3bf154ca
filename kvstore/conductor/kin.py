"""What prefills cost an engine that was silent for a while: more and more what they cost its kin.

An engine that is sent nothing says nothing of what it takes. What was learned of it under another
load would keep all work from it for as long, however idle it is. So how it differs from others that
began with the same prior is forgotten while it is silent; one that has just come costs what they
do. One that is slower for good is tried again now and then, and then it is known for another while.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SILENT_SECONDS = 20.0  # after which a third of what sets an engine apart is left
TOKENS = 4096.0  # of the prompt by which costs are compared
_LEAST = 1e-9  # that the one that spoke last counts for, however long ago that was


def lean(
    costs: NDArray[np.float64], kinds: NDArray[np.int64], silent: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Costs [engine, 3] (a, b and c of seconds = a + b n + c n (n + 2 prefix)) to reckon with, of
    engines of such kinds that were silent for so many seconds, or for ever: infinite."""
    levels = np.log(costs @ np.array([1.0, TOKENS, TOKENS * TOKENS]))
    known = np.exp(-np.maximum(silent, 0.0) / SILENT_SECONDS)
    _, kind = np.unique(kinds, return_inverse=True)
    weights = np.maximum(known, _LEAST)
    kins = np.bincount(kind, weights * levels) / np.bincount(kind, weights)
    found: NDArray[np.float64] = costs * np.exp((kins[kind] - levels) * (1.0 - known))[:, None]
    return found
