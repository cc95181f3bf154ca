"""Events to come of a simulation, the next first; of equal times the one that was said first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .inner import BORROWED, inner

EVENT = np.dtype(
    [
        ("time", np.float64),
        ("order", np.int64),
        ("what", np.int64),
        ("who", np.int32),
        ("kind", np.int32),
    ]
)


class Heap(NamedTuple):
    events: NDArray[np.void]  # of EVENT
    counts: NDArray[np.int64]  # how many are in it; how many ever were


def heap(most: int) -> Heap:
    """Has place for so many at once."""
    return Heap(np.zeros(most, EVENT), np.zeros(2, np.int64))


@inner
def _before(h: Any, one: Any, other: Any) -> Any:
    a, b = h.events[one], h.events[other]
    return a.time < b.time or (a.time == b.time and a.order < b.order)


@inner
def _swap(h: Any, one: Any, other: Any) -> None:
    a, b = h.events[one], h.events[other]
    a.time, b.time = b.time, a.time
    a.order, b.order = b.order, a.order
    a.what, b.what = b.what, a.what
    a.who, b.who = b.who, a.who
    a.kind, b.kind = b.kind, a.kind


@njit(**BORROWED)
def push(h: Any, time: Any, kind: Any, who: Any, what: Any) -> None:
    at = h.counts[0]
    if at == len(h.events):
        raise IndexError("more events at once than there is place for")
    event = h.events[at]
    event.time, event.order = time, h.counts[1]
    event.kind, event.who, event.what = kind, who, what
    h.counts[0] += 1
    h.counts[1] += 1
    while at > 0 and _before(h, at, (at - 1) >> 1):
        _swap(h, at, (at - 1) >> 1)
        at = (at - 1) >> 1


@njit(**BORROWED)
def pop(h: Any) -> Any:
    """Time, kind, who and what of the next event. There is one."""
    first = h.events[0]
    found = (first.time, first.kind, np.int64(first.who), first.what)
    h.counts[0] -= 1
    last, at = h.counts[0], 0
    _swap(h, 0, last)
    while True:
        child = 2 * at + 1
        if child >= last:
            return found
        if child + 1 < last and _before(h, child + 1, child):
            child += 1
        if not _before(h, child, at):
            return found
        _swap(h, at, child)
        at = child
