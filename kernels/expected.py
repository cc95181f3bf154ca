"""Which blocks are on their way at which engine, counted, so that several prompts may share them.

An open-addressing table. A block that is on its way at one engine, as nearly all are, has one
place: whose it is, and by how many prompts. One that is on its way at several has a place that says
at how many, beside the exclusive or of their numbers, and one for each of them, by how many
prompts. What is counted in is counted out again, and then its place is empty: nothing is marked
deleted.

Of a long prompt not every block is counted: all of the first 16, and from there on eight each time
that the number of blocks doubles. So a thousand blocks are 64 marks, and what two prompts share is
known to an eighth.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .inner import BORROWED, KEPT, inner

USED = 0  # in `state`: places that are taken
LOOKS = 4  # lengths of what is on its way that one query tells apart, the longest ones
_EVERY = np.uint64(0)
_BLOCKS_MAX = 1 << 20  # of a prompt, more than are sent
_FINE = 3  # bits of a number of blocks that tell marks apart
_MIX, _SHIFT = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_EMPTY = np.uint64(0)


def _depths() -> NDArray[np.int32]:
    """How many blocks there are up to and with each mark; for no mark 0."""
    found = [0, 1]
    while found[-1] < _BLOCKS_MAX:
        found.append(found[-1] + max(1, 1 << (found[-1].bit_length() - 1) >> _FINE))
    return np.array(found, np.int32)


DEPTHS = _depths()
PLACE = np.dtype(
    [
        ("key", np.uint64),  # 0 where there is nothing
        # Of prompts that have a block at an engine; less than 0 where that is the only one, and
        # `whose` it is. Of a block's engines, where it has several, and their exclusive or.
        ("count", np.int32),
        ("whose", np.int32),
    ],
    align=True,
)


def marked(prints: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of a prompt's blocks those that are counted."""
    return prints.take(_counted(len(prints)))


@lru_cache(1024)
def _counted(blocks: int) -> NDArray[np.intp]:
    """Which of so many. Nobody changes the answer."""
    return DEPTHS[1 : np.searchsorted(DEPTHS, blocks, "right")].astype(np.intp) - 1


class Expected(NamedTuple):
    """The table. Its length is a power of two, and at most half of it is used."""

    places: NDArray[np.void]  # of PLACE
    state: NDArray[np.int64]


def empty(places: int) -> Expected:
    assert places & (places - 1) == 0, "the length is no power of two"
    return Expected(np.zeros(places, PLACE), np.zeros(1, np.int64))


@inner
def _key(one: Any, whose: Any) -> Any:
    """Of a block at an engine, whose number is one less, or at every one."""
    mixed = (one ^ (whose * _MIX)) * _MIX
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX
    return max(mixed ^ (mixed >> _SHIFT), np.uint64(1))


@inner
def _place(table: Any, key: Any) -> Any:
    """Where a key stands, or would."""
    mask = np.uint64(len(table.places) - 1)
    at = np.int64(key & mask)
    while table.places[at].key != _EMPTY and table.places[at].key != key:
        at = (at + 1) & np.int64(mask)
    return at


@inner
def _enter(table: Any, at: Any, key: Any, count: Any, whose: Any) -> None:
    """Into a place that is empty."""
    place = table.places[at]
    place.key, place.count, place.whose = key, count, whose
    table.state[USED] += 1


@inner
def _key_at(one: Any, engine: Any) -> Any:
    return _key(one, np.uint64(engine + 1))


@inner
def _copy(place: Any, other: Any) -> None:
    place.key, place.count, place.whose = other.key, other.count, other.whose


@inner
def _take_out(table: Any, at: Any) -> None:
    """Empty a place; those behind it that were looked for there move up."""
    mask = len(table.places) - 1
    hole, behind = at, (at + 1) & mask
    while table.places[behind].key != _EMPTY:
        due = np.int64(table.places[behind].key & np.uint64(mask))
        if ((behind - due) & mask) >= ((behind - hole) & mask):
            _copy(table.places[hole], table.places[behind])
            hole = behind
        behind = (behind + 1) & mask
    left = table.places[hole]
    left.key, left.count, left.whose = _EMPTY, 0, 0
    table.state[USED] -= 1


@njit(cache=KEPT, **BORROWED)
def expect(places: Any, state: Any, prints: Any, engine: Any) -> None:
    """One more prompt with these blocks is on its way to an engine. There is room for them."""
    table = Expected(places, state)
    for one in prints:
        key = _key(one, _EVERY)
        at = _place(table, key)
        place = table.places[at]
        if place.key == _EMPTY:
            _enter(table, at, key, -1, engine)
        elif place.count > 0:
            _expect_beside(table, place, one, engine)
        elif place.whose == engine:
            place.count -= 1
        else:  # it was at one engine alone
            mine = _key_at(one, place.whose)
            _enter(table, _place(table, mine), mine, -place.count, 0)
            place.count = 1
            _expect_beside(table, place, one, engine)


@inner
def _expect_beside(table: Any, place: Any, one: Any, engine: Any) -> None:
    """A block that other engines have on their way as well: `place` is that of all."""
    key = _key_at(one, engine)
    at = _place(table, key)
    if table.places[at].key != _EMPTY:
        table.places[at].count += 1
        return
    _enter(table, at, key, 1, 0)
    place.count += 1
    place.whose ^= engine


@njit(cache=KEPT, **BORROWED)
def settle(places: Any, state: Any, prints: Any, engine: Any) -> None:
    """One that was counted in is not on its way any more."""
    table = Expected(places, state)
    for one in prints:
        at = _place(table, _key(one, _EVERY))
        place = table.places[at]
        if place.count > 0:
            _settle_beside(table, one, engine)
        elif place.count < 0 and place.whose == engine:
            place.count += 1
            if place.count == 0:
                _take_out(table, at)


@inner
def _settle_beside(table: Any, one: Any, engine: Any) -> None:
    at = _place(table, _key_at(one, engine))
    if table.places[at].key == _EMPTY:
        return  # it was never counted in
    table.places[at].count -= 1
    if table.places[at].count:
        return
    _take_out(table, at)  # others may move up: what was found before stands elsewhere now
    place = table.places[_place(table, _key(one, _EVERY))]
    place.count -= 1
    place.whose ^= engine
    if place.count > 1:
        return
    last = _place(table, _key_at(one, place.whose))
    place.count = -table.places[last].count
    _take_out(table, last)


@njit(cache=KEPT, **BORROWED)
def move(table: Any, wider: Any) -> None:
    """Lay all out in a larger table, which is empty."""
    for at in range(len(table.places)):
        if table.places[at].key != _EMPTY:
            _copy(wider.places[_place(wider, table.places[at].key)], table.places[at])
    wider.state[USED] = table.state[USED]


@inner
def _engines(table: Any, one: Any) -> Any:
    """At how many engines a block is on its way."""
    at = _place(table, _key(one, _EVERY))
    count = table.places[at].count
    return count if count >= 0 else 1


@inner
def coming(table: Any, prints: Any, found: Any) -> None:
    """How many leading blocks of a prompt are on their way to each engine, into `found`; `prints`
    are its marked ones.

    Prompts are counted in from their first block, so a block is on its way at no more engines than
    the one before it, and the same ones where it is as many.
    """
    _marks(table, prints, found)
    for engine in range(len(found)):
        found[engine] = DEPTHS[found[engine]]


@inner
def _marks(table: Any, prints: Any, found: Any) -> None:
    """The same in marks."""
    found[:] = 0
    if len(prints) == 0 or _engines(table, prints[0]) == 0:
        return
    depth = _last(table, prints, 1, np.int64(0), np.int64(len(prints))) + 1
    for _ in range(LOOKS):
        last = prints[depth - 1]
        at = _place(table, _key(last, _EVERY))
        count = _engines(table, last)
        if count == 1:
            found[table.places[at].whose] = max(found[table.places[at].whose], depth)
        else:
            for engine in range(len(found)):
                if found[engine] < depth:
                    there = _place(table, _key_at(last, engine))
                    if table.places[there].key != _EMPTY:
                        found[engine] = depth
        if _engines(table, prints[0]) <= count:
            return
        depth = _last(table, prints, count + 1, np.int64(0), depth - 1) + 1


@inner
def _last(table: Any, prints: Any, count: Any, low: Any, high: Any) -> Any:
    """The last block before `high` that is on its way at so many engines; `low` is."""
    while high - low > 1:
        middle = (low + high) // 2
        if _engines(table, prints[middle]) >= count:
            low = middle
        else:
            high = middle
    return low
