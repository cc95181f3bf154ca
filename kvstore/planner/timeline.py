"""How full a simulated cluster was over time, read off what became of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.kernels.sim_world import World
from kvstore.planner import outcome

MOMENTS = 240  # that are looked at, evenly spread
TOLD = 4  # requests, on average, that a mean is of: of one alone it would be that one's


@dataclass(frozen=True, slots=True)
class Timeline:
    """One entry a moment. NaN is None, where nothing can be said."""

    seconds: tuple[float, ...]
    queued: tuple[int, ...]  # prompts that wait to be prefilled
    decoding: tuple[int, ...]  # sequences
    # Mean, of requests that came then: since the moment before, or in as many as `TOLD` come in.
    ttft: tuple[float | None, ...]
    in_time: tuple[float | None, ...]  # share of those


def timeline(world: World) -> Timeline:
    """After a run."""
    requests = world.requests
    ends = [float(np.nanmax(requests[name], initial=0)) for name in ("arrival", "finished")]
    moments = np.linspace(0, max(*ends, 1e-3), MOMENTS + 1)
    # Who is dropped when its turn comes has no moment of it: its wait is not in the queue's length.
    began = np.isfinite(requests["began"])
    served = np.isfinite(requests["finished"])
    since = np.searchsorted(moments, requests["arrival"], side="left").clip(1) - 1
    return Timeline(
        tuple(moments[1:].tolist()),
        _between(requests["arrival"][began], requests["began"][began], moments[1:]),
        _between(requests["first_token"][served], requests["finished"][served], moments[1:]),
        _means(since[served], outcome.ttft(requests)[served]),
        _means(since, outcome.in_time(world).astype(np.float64)),
    )


def _between(begins: Any, ends: Any, moments: NDArray[np.float64]) -> tuple[int, ...]:
    begun = np.searchsorted(np.sort(begins), moments, side="right")
    ended = np.searchsorted(np.sort(ends), moments, side="right")
    return tuple((begun - ended).tolist())


def _means(which: Any, values: Any) -> tuple[float | None, ...]:
    each = min(MOMENTS, max(1, -(-TOLD * MOMENTS // max(1, len(which)))))  # moments
    count = np.bincount(which // each)
    total = np.bincount(which // each, values)
    means = total / np.maximum(1, count)
    told = [mean if some else None for mean, some in zip(means.tolist(), count, strict=True)]
    told += [None] * (-(-MOMENTS // each) - len(told))
    return tuple(told[moment // each] for moment in range(MOMENTS))
