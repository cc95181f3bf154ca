"""Leaves of simulated hosts, by host, kind and tier: what can go without anything behind it.

A treap for each (Seidel and Aragon 1996), in the order of last touch, with both its ends at hand. A
block's place below others is by its number mixed, so that nothing depends on chance, and whether it
is in one at all is for whoever puts it there to know.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .inner import inner

NONE = -1
TREE = np.dtype([("root", np.int32), ("oldest", np.int32), ("newest", np.int32)])


def trees(count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Empty ones."""
    made = np.zeros(count, TREE)
    made["root"] = made["oldest"] = made["newest"] = NONE
    return made


@inner
def empty(trees: Any, tree: Any) -> None:
    """Nothing is in it any more."""
    trees[tree].root, trees[tree].oldest, trees[tree].newest = NONE, NONE, NONE


@inner
def _rank(entry: Any) -> Any:
    return np.uint64(entry + 1) * np.uint64(0x9E3779B97F4A7C15)


@inner
def _hang(trees: Any, below: Any, tree: Any, up: Any, side: Any, entry: Any) -> None:
    """Below `up`, at the side of the older (0) or the younger; with nobody there as the root."""
    if up == NONE:
        trees[tree].root = entry
    else:
        below[up, side] = entry


@inner
def insert(trees: Any, below: Any, entries: Any, tree: Any, entry: Any) -> None:
    """`below`: [entry]: who hangs below it, older and younger; `entries` know their `stamp`."""
    stamp, rank = entries[entry].stamp, _rank(entry)
    up, side, one = np.int32(NONE), 0, trees[tree].root
    while one != NONE and _rank(one) > rank:
        up, side = one, 1 if entries[one].stamp < stamp else 0
        one = below[one, side]
    _hang(trees, below, tree, up, side, entry)
    older, younger = entry, entry  # where the next of either is to hang
    older_side, younger_side = 0, 1
    while one != NONE:
        if entries[one].stamp < stamp:
            below[older, older_side] = one
            older, older_side = one, 1
            one = below[one, 1]
        else:
            below[younger, younger_side] = one
            younger, younger_side = one, 0
            one = below[one, 0]
    below[older, older_side] = NONE
    below[younger, younger_side] = NONE
    if trees[tree].oldest == NONE or stamp < entries[trees[tree].oldest].stamp:
        trees[tree].oldest = entry
    if trees[tree].newest == NONE or stamp > entries[trees[tree].newest].stamp:
        trees[tree].newest = entry


@inner
def _end(trees: Any, below: Any, tree: Any, side: Any) -> Any:
    one, last = trees[tree].root, np.int32(NONE)
    while one != NONE:
        last = one
        one = below[one, side]
    return last


@inner
def take_out(trees: Any, below: Any, entries: Any, tree: Any, entry: Any) -> None:
    """One that is in it, with the stamp with which it came."""
    stamp, up, side, one = entries[entry].stamp, np.int32(NONE), 0, trees[tree].root
    while one != entry:
        up, side = one, 1 if entries[one].stamp < stamp else 0
        one = below[one, side]
    older, younger = below[entry, 0], below[entry, 1]
    while older != NONE and younger != NONE:
        if _rank(older) > _rank(younger):
            _hang(trees, below, tree, up, side, older)
            up, side, older = older, 1, below[older, 1]
        else:
            _hang(trees, below, tree, up, side, younger)
            up, side, younger = younger, 0, below[younger, 0]
    _hang(trees, below, tree, up, side, older if older != NONE else younger)
    if trees[tree].oldest == entry:
        trees[tree].oldest = _end(trees, below, tree, 0)
    if trees[tree].newest == entry:
        trees[tree].newest = _end(trees, below, tree, 1)
