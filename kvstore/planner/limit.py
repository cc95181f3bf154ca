"""The rate that no router can exceed on a cluster, whatever it knows: arithmetic on what engines
really take.

Every block that an earlier prompt had is there at no cost, engines never idle, whoever costs the
least is served and the rest refused at no cost, and decoding takes nothing. What is between this
and the best policy is what policies, caches and links could still win.
"""

from __future__ import annotations

import math

import numpy as np

from kvstore.kernels.engine_time import TOKEN, prefill_takes
from kvstore.planner import truth
from kvstore.planner.cluster import Cluster
from kvstore.planner.load import Load
from kvstore.planner.search import SHARE


def rate_limit(load: Load, cluster: Cluster, seed: int, share: float = SHARE) -> float:
    """Requests a second with so great a share of them in time. The last to arrive may take as long
    as the target for the first token allows: infinite where that is enough for all."""
    tokens = load.input_tokens.astype(np.float64)
    prefix = np.minimum(load.found_tokens_max().astype(np.float64), tokens - 1)
    times = truth.rows(cluster.shape, cluster.pools, seed)
    kinds = [pool for pool in cluster.pools for _ in range(pool.engines)]
    total, work = 0.0, {}
    for engine, pool in enumerate(kinds):
        if not pool.prefills:
            continue
        if pool not in work:  # engines of a kind differ by one factor
            both = zip(tokens - prefix, prefix, strict=True)
            took = np.sort([prefill_takes(times, engine, *one) for one in both])
            kept = took[: max(1, int(share * len(took)))]
            work[pool] = float(kept.sum()) / times[engine, TOKEN]
        total += 1 / (work[pool] * times[engine, TOKEN])
    seconds = 1 / total - cluster.ttft_seconds
    return len(load) / seconds if seconds > 0 else math.inf
