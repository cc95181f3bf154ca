"""Prompts that wait at an engine of a simulated fleet: whose turn is next.

By the rules the first that came, or the shortest, of which a second of waiting makes up for some.
A prompt is as long as was reckoned when it came, without what was to be computed before it. So what
it begins with may be another that is thought longer, and would wait on: that has its turn first, or
its KV would be computed while it comes too late.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fleet import NONE, SIZES, seconds_of
from .inner import inner


@inner
def join(w: Any, r: Any, e: Any) -> None:
    size = w.requests[r].size
    w.requests[r].after = NONE
    if w.heads[e, size] == NONE:
        w.heads[e, size] = r
    else:
        w.requests[w.tails[e, size]].after = r
    w.tails[e, size] = r


@inner
def take_out(w: Any, r: Any, e: Any) -> None:
    size, before = w.requests[r].size, np.int64(NONE)
    one = np.int64(w.heads[e, size])
    while one != r:
        before, one = one, np.int64(w.requests[one].after)
    after = w.requests[r].after
    if before == NONE:
        w.heads[e, size] = after
    else:
        w.requests[before].after = after
    if after == NONE:
        w.tails[e, size] = before


@inner
def next_in_line(w: Any, e: Any, now: Any) -> Any:
    """NONE if nobody waits."""
    size = _whose_turn(w, e, now)
    if size == NONE:
        return np.int64(NONE)
    r = np.int64(w.heads[e, size])
    return _begins(w, r, e, size) if w.rules.shortest_first else r


@inner
def _whose_turn(w: Any, e: Any, now: Any) -> Any:
    """The size whose first has the least work left after what it waited."""
    size, least = NONE, np.inf
    for one in range(SIZES):
        head = w.heads[e, one]
        if head != NONE:
            key = seconds_of(one) - w.rules.aging * (now - w.requests[head].arrival)
            if key < least:
                size, least = one, key
    return size


@inner
def _begins(w: Any, r: Any, e: Any, size: Any) -> Any:
    """Of those that came before a prompt and are thought longer, the shortest that it begins with,
    as far as whole blocks tell; else itself. Who comes later does not overtake it so."""
    found, least, first = r, w.first[r + 1] - w.first[r], w.first[r]
    for longer in range(size + 1, SIZES):
        one = np.int64(w.heads[e, longer])
        while one != NONE:
            last = w.first[one + 1] - w.first[one] - 1
            begins = 0 <= last < least - 1
            if begins and one < r and w.blocks[w.first[one] + last] == w.blocks[first + last]:
                found, least = one, last + 1
            one = np.int64(w.requests[one].after)
    return found
