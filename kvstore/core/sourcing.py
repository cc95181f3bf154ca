"""Which blocks to fetch from which holder: memory before disk, long runs striped over several.

Pure. Blocks are rows 0..n-1 of one call; a holder's tiers say of each row where it has it (bit 0:
DRAM, bit 1: SSD, bit 2: HBM; 0: nowhere).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.core.fingerprints import IN_MEMORY

STRIPE_ROWS_MIN = 8  # a stripe of fewer blocks takes longer to ask for than to move

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows that one holder is asked for, and who else has every one of them."""

    holder: str
    rows: Rows
    others: tuple[str, ...]


def stripes(holders: Mapping[str, NDArray[np.uint8]], weights: Mapping[str, float]) -> list[Stripe]:
    """Every row that somebody holds, once. `weights`: how much of a run each holder takes, as its
    measured bytes a second; who has none takes as much as the best."""
    if not holders:
        return []
    names = sorted(holders)
    best = max([weights[one] for one in names if one in weights], default=1.0)
    weight = np.array([weights.get(one, best) for one in names])
    tiers = np.stack([holders[one] for one in names])
    fast = tiers & IN_MEMORY != 0
    usable = np.where(fast.any(axis=0), fast, tiers != 0)
    rows = np.flatnonzero(usable.any(axis=0))
    if not len(rows):
        return []
    apart = (np.diff(rows) != 1) | (usable[:, rows[1:]] != usable[:, rows[:-1]]).any(axis=0)
    found: list[Stripe] = []
    for run in np.split(rows, np.flatnonzero(apart) + 1):
        candidates = np.flatnonzero(usable[:, run[0]])
        most = max(1, len(run) // STRIPE_ROWS_MIN)
        chosen = candidates[np.argsort(-weight[candidates], kind="stable")][:most]
        ends = np.round(np.cumsum(weight[chosen]) / weight[chosen].sum() * len(run)).astype(int)
        for holder, part in zip(chosen, np.split(run, ends[:-1]), strict=True):
            if len(part):
                having = (tiers[:, part] != 0).all(axis=1)
                others = [names[i] for i in np.flatnonzero(having) if i != holder]
                found.append(Stripe(names[holder], part, tuple(others)))
    return found
