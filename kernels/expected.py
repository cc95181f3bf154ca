"""Which blocks are on their way at which engine, counted, so that several prompts may share them.

An open-addressing table of two kinds of counts: of a block at an engine, by how many prompts, and
of a block, at how many engines. Beside the latter stands the exclusive or of these engines'
numbers, so where it is one engine nobody has to look for it. What is counted in is counted out
again, and then its place is empty: nothing is marked deleted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

USED = 0  # in `state`: places that are taken
LOOKS = 4  # lengths of what is on its way that one query tells apart, the longest ones
_EVERY = np.uint64(0)
_MIX, _SHIFT = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_EMPTY = np.uint64(0)


class Expected(NamedTuple):
    """The table. Its length is a power of two, and at most half of it is used."""

    keys: NDArray[np.uint64]  # of places, 0 where there is nothing
    counts: NDArray[np.int32]
    whose: NDArray[np.int32]
    state: NDArray[np.int64]


def empty(places: int) -> Expected:
    assert places & (places - 1) == 0, "the length is no power of two"
    return Expected(
        np.zeros(places, np.uint64),
        np.zeros(places, np.int32),
        np.zeros(places, np.int32),
        np.zeros(1, np.int64),
    )


@njit
def _key(one: Any, whose: Any) -> Any:
    """Of a block at an engine, whose number is one less, or at every one."""
    mixed = (one ^ (whose * _MIX)) * _MIX
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX
    return max(mixed ^ (mixed >> _SHIFT), np.uint64(1))


@njit
def _place(table: Any, key: Any) -> Any:
    """Where a key stands, or would."""
    mask = np.uint64(len(table.keys) - 1)
    at = np.int64(key & mask)
    while table.keys[at] != _EMPTY and table.keys[at] != key:
        at = (at + 1) & np.int64(mask)
    return at


@njit
def _count(table: Any, key: Any, more: Any, whose: Any) -> Any:
    """Count in or out; what is counted now."""
    at = _place(table, key)
    if table.keys[at] == _EMPTY:
        if more < 0:
            return -1  # it was never counted in
        table.keys[at] = key
        table.state[USED] += 1
    table.counts[at] += more
    table.whose[at] ^= whose
    left = table.counts[at]
    if left == 0:
        _take_out(table, at)
    return left


@njit
def _take_out(table: Any, at: Any) -> None:
    """Empty a place; those behind it that were looked for there move up."""
    mask = len(table.keys) - 1
    hole, behind = at, (at + 1) & mask
    while table.keys[behind] != _EMPTY:
        due = np.int64(table.keys[behind] & np.uint64(mask))
        if ((behind - due) & mask) >= ((behind - hole) & mask):
            table.keys[hole] = table.keys[behind]
            table.counts[hole], table.whose[hole] = table.counts[behind], table.whose[behind]
            hole = behind
        behind = (behind + 1) & mask
    table.keys[hole], table.counts[hole], table.whose[hole] = _EMPTY, 0, 0
    table.state[USED] -= 1


@njit(cache=True)
def expect(table: Any, prints: Any, engine: Any) -> None:
    """One more prompt with these blocks is on its way to an engine. There is room for them."""
    for one in prints:
        if _count(table, _key(one, np.uint64(engine + 1)), 1, 0) == 1:
            _count(table, _key(one, _EVERY), 1, engine)


@njit(cache=True)
def settle(table: Any, prints: Any, engine: Any) -> None:
    """One that was counted in is not on its way any more."""
    for one in prints:
        if _count(table, _key(one, np.uint64(engine + 1)), -1, 0) == 0:
            _count(table, _key(one, _EVERY), -1, engine)


@njit(cache=True)
def move(table: Any, wider: Any) -> None:
    """Lay all out in a larger table, which is empty."""
    for at in range(len(table.keys)):
        if table.keys[at] != _EMPTY:
            to = _place(wider, table.keys[at])
            wider.keys[to] = table.keys[at]
            wider.counts[to], wider.whose[to] = table.counts[at], table.whose[at]
    wider.state[USED] = table.state[USED]


@njit
def _engines(table: Any, one: Any) -> Any:
    """At how many engines a block is on its way."""
    at = _place(table, _key(one, _EVERY))
    return table.counts[at]


@njit
def coming(table: Any, prints: Any, found: Any) -> None:
    """How many leading blocks of a prompt are on their way to each engine, into `found`.

    Prompts are counted in from their first block, so a block is on its way at no more engines than
    the one before it, and the same ones where it is as many.
    """
    found[:] = 0
    if len(prints) == 0 or _engines(table, prints[0]) == 0:
        return
    depth = _last(table, prints, 1, np.int64(0), np.int64(len(prints))) + 1
    for _ in range(LOOKS):
        last = prints[depth - 1]
        at = _place(table, _key(last, _EVERY))
        count = table.counts[at]
        if count == 1:
            found[table.whose[at]] = max(found[table.whose[at]], depth)
        else:
            for engine in range(len(found)):
                if found[engine] < depth:
                    there = _place(table, _key(last, np.uint64(engine + 1)))
                    if table.keys[there] != _EMPTY:
                        found[engine] = depth
        if _engines(table, prints[0]) <= count:
            return
        depth = _last(table, prints, count + 1, np.int64(0), depth - 1) + 1


@njit
def _last(table: Any, prints: Any, count: Any, low: Any, high: Any) -> Any:
    """The last block before `high` that is on its way at so many engines; `low` is."""
    while high - low > 1:
        middle = (low + high) // 2
        if _engines(table, prints[middle]) >= count:
            low = middle
        else:
            high = middle
    return low
