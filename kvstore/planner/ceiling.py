"""The most that reuse can bring a load, and what a link must do for it: arithmetic, no queues.

A cache that forgets nothing has every whole leading block of a prompt that an earlier one had. What
prefilling the rest costs is the least that any pool can reach; what is between that and prefilling
all is the most it can save. Fetching pays where the bytes of the prefix come sooner than its KV is
computed anew, so for a prompt there is a bandwidth at which both take as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvstore.core.cost import PrefillCost
from kvstore.core.hardware import Fabric
from kvstore.core.model_shape import ModelShape
from kvstore.planner.load import Load


@dataclass(frozen=True, slots=True)
class Fetch:
    """One kind of link, and the prompts of a load that have something to fetch."""

    fabric: str
    pays_share: float  # of these prompts: fetched sooner than computed
    saved_share: float  # of all prefill seconds, where each prompt takes the sooner way


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one engine's cost makes of a load."""

    prefill_s: float  # of all requests, nothing reused
    prefill_least_s: float  # all that can be found is there, at no cost
    engines: float  # that prefilling all keeps busy on average; 0 where all arrive at once
    engines_least: float
    reusing: int  # requests of which something can be found
    break_even: float | None  # bytes a second at which half of these come sooner than computed
    fetches: tuple[Fetch, ...]


def ceiling(load: Load, shape: ModelShape, cost: PrefillCost, fabrics: Iterable[Fabric]) -> Ceiling:
    """For engines that each prefill at this cost, one prompt after another."""
    tokens = load.input_tokens.astype(np.float64)
    # A prefill ends with a token's logits, so one is computed whatever is found.
    found = np.minimum(load.found_tokens_max().astype(np.float64), tokens - 1)
    whole, rest = cost.seconds(tokens, 0.0), cost.seconds(tokens - found, found)
    saved = whole - rest
    reusing = found > 0
    size = found[reusing] * shape.kv_bytes_per_token
    fetches = []
    for fabric in fabrics:
        gained = saved[reusing] - fabric.cost.seconds(size)
        pays = gained > 0
        fetches.append(
            Fetch(
                fabric.name,
                float(pays.mean()) if len(pays) else 0.0,
                float(gained[pays].sum() / whole.sum()),
            )
        )
    return Ceiling(
        float(whole.sum()),
        float(rest.sum()),
        float(whole.mean()) * load.rate,
        float(rest.mean()) * load.rate,
        int(reusing.sum()),
        float(np.median(size / saved[reusing])) if reusing.any() else None,
        tuple(fetches),
    )
