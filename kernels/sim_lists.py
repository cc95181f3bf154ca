"""Lists of blocks that simulated hosts know, in the order of last use or of going.

A block of a host can be in two at a time: in that of what plain LRU would hold there, and in one
of its own, of copies in DRAM by kind or of what is gone. So there are two rows of links.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, inner

NONE = -1
BY_LRU, ITS_OWN = range(2)  # rows of links
LIST = np.dtype([("newest", np.int32), ("oldest", np.int32), ("size", np.int32)])


def lists(count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Empty ones."""
    made = np.zeros(count, LIST)
    made["newest"] = made["oldest"] = NONE
    return made


@inner
def empty(some: Any, one: Any) -> None:
    """Nothing is in it any more."""
    some[one].newest, some[one].oldest, some[one].size = NONE, NONE, 0


@inner
def unlink(some: Any, links: Any, one: Any, entry: Any) -> None:
    """Take it out of the list. `links` is a row: [entry]: the next newer and the next older."""
    newer, older = links[entry, 0], links[entry, 1]
    if newer == NONE:
        some[one].newest = older
    else:
        links[newer, 1] = older
    if older == NONE:
        some[one].oldest = newer
    else:
        links[older, 0] = newer
    some[one].size -= 1


@njit(**BORROWED)
def link_newest(some: Any, links: Any, one: Any, entry: Any) -> None:
    first = some[one].newest
    links[entry, 0], links[entry, 1] = NONE, first
    if first == NONE:
        some[one].oldest = entry
    else:
        links[first, 0] = entry
    some[one].newest = entry
    some[one].size += 1
