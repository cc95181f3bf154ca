"""How long blocks lie at simulated hosts before they are used again, and what keeping one is worth:
`kvstore.core.life_table`, of many hosts at once and in compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .inner import inner
from .keeping import AGES, DOUBT, FADE, KNOWN, LEARN_TICKS, STARTS, TICK, TICKS_MAX, WIDTHS

KINDS = 4  # by the number of uses; short last blocks are of no use to anybody and are not simulated

_STARTS, _WIDTHS = np.array(STARTS), np.array(WIDTHS)


class Lives(NamedTuple):
    tick: NDArray[np.int64]  # [host]
    came: NDArray[np.float64]  # [host, KINDS, AGES]: to that age unused
    used: NDArray[np.float64]  # [host, KINDS, AGES]: at that age
    worth: NDArray[np.float64]  # [host, KINDS, AGES]: as last worked out
    # [host, ticks, KINDS]: of the blocks last used in a tick, how many are unused since. A ring: a
    # wait that is longer is not learned from.
    waiting: NDArray[np.int32]


def lives(hosts: int, uses: int) -> Lives:
    """Of nothing yet. A host is not to see many more than `uses` of blocks."""
    counts = np.zeros((3, hosts, KINDS, AGES))
    ticks = min(TICKS_MAX, 1 << (uses // TICK + 1).bit_length())
    waiting = np.zeros((hosts, ticks, KINDS), np.int32)
    return Lives(np.zeros(hosts, np.int64), counts[0], counts[1], counts[2], waiting)


@inner
def begin(v: Any, host: Any) -> None:
    """Anew: nothing is known."""
    v.tick[host] = 0
    for kind in range(KINDS):
        for one in range(AGES):
            v.came[host, kind, one] = v.used[host, kind, one] = v.worth[host, kind, one] = 0.0
        for row in range(v.waiting.shape[1]):
            v.waiting[host, row, kind] = 0


@inner
def age(v: Any, host: Any, since: Any) -> Any:
    """The age class of what was last used in tick `since`."""
    ticks, low, high = v.tick[host] - since, 0, AGES
    while high - low > 1:
        middle = (low + high) // 2
        if _STARTS[middle] <= ticks:
            low = middle
        else:
            high = middle
    return low


@inner
def wait(v: Any, host: Any, kind: Any) -> None:
    """A block of this kind was used in this tick and waits for its next use."""
    v.waiting[host, v.tick[host] & (v.waiting.shape[1] - 1), kind] += 1
    v.came[host, kind, 0] += 1


@inner
def lose(v: Any, host: Any, kind: Any, since: Any) -> Any:
    """One that waited is watched no longer; False if it had waited too long to be known."""
    ticks = v.waiting.shape[1]
    if v.tick[host] - since >= ticks:
        return False
    v.waiting[host, since & (ticks - 1), kind] -= 1
    return True


@inner
def use(v: Any, host: Any, kind: Any, since: Any) -> None:
    """One that waited since that tick is used."""
    if lose(v, host, kind, since):
        v.used[host, kind, age(v, host, since)] += 1


@inner
def pass_tick(v: Any, host: Any) -> None:
    last = v.waiting.shape[1] - 1
    v.tick[host] += 1
    tick = v.tick[host]
    for one in range(1, AGES):
        if _STARTS[one] > min(tick, last):
            break
        row = (tick - _STARTS[one]) & last
        for kind in range(KINDS):
            v.came[host, kind, one] += v.waiting[host, row, kind]
    for kind in range(KINDS):
        v.waiting[host, tick & last, kind] = 0
    if tick % LEARN_TICKS == 0:
        _learn(v, host)


@inner
def _learn(v: Any, host: Any) -> None:
    """Chance of a use for each use of blocks that one is held, by kind and age. Fades."""
    for one in range(AGES):
        used, came = 0.0, 0.0
        for kind in range(KINDS):
            used += v.used[host, kind, one]
            came += v.came[host, kind, one]
        all_kinds = used / max(came, 1e-9)
        for kind in range(KINDS):
            rate = (v.used[host, kind, one] + KNOWN * DOUBT * all_kinds) / (
                v.came[host, kind, one] + KNOWN
            )
            v.worth[host, kind, one] = min(max(rate, 0.0), 1.0)
    for kind in range(KINDS):
        for one in range(AGES):
            best, unused, used, held = 0.0, 1.0, 0.0, 0.0
            for later in range(one, AGES):
                chance = v.worth[host, kind, later]
                used += unused * chance
                held += unused * (1 - chance / 2) * _WIDTHS[later]
                best = max(best, used / held)
                unused *= 1 - chance
            v.worth[host, kind, one] = best  # whose rate nobody asks for any more
            v.used[host, kind, one] *= FADE
            v.came[host, kind, one] *= FADE
