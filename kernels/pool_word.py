"""Who holds a block, as one word; 0 is nobody.

A member is a holder's number and the tiers it has the block in. Up to `INLINE` members stand in the
word themselves, by their numbers, the first lowest. More are a set, by its number, with `SETS`
added; equal sets have one number, and `starts`, `sizes` and `members` say who is in it.

What a word becomes when a member changes is worked out where no set has to do with it, and looked
up in a table of turns elsewhere: what is not there yet is for the caller to work out, so nothing
here allocates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, KEPT, inner

TIER_BITS = 3  # of a member; the holder's number is above them
TIERS = (1 << TIER_BITS) - 1
MEMBER_BITS = 17
MEMBER = (1 << MEMBER_BITS) - 1
INLINE = 3
SETS = 1 << 62  # added to the number of a set


@inner
def member_count(value: Any, sizes: Any) -> Any:
    """How many members a value has."""
    if value >= SETS:
        return sizes[value - SETS]
    one, two = value >> MEMBER_BITS != 0, value >> 2 * MEMBER_BITS != 0
    return np.int64(value != 0) + np.int64(one) + np.int64(two)


@inner
def member_at(value: Any, one: Any, starts: Any, members: Any) -> Any:
    """That of a number below `member_count`."""
    if value >= SETS:
        return members[starts[value - SETS] + one]
    return value >> MEMBER_BITS * one & MEMBER


@inner
def _turn_at(value: Any, member: Any, places: Any) -> Any:
    """Where in a table of 2**k places a turn is looked for first."""
    mixed = np.uint64(value + (member << MEMBER_BITS * INLINE)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(20)) & (places - 1)


@inner
def _inline(value: Any, holder: Any, member: Any) -> Any:
    """What members that stand in a place become with one of this holder, or without where that is
    0; -1 where they are too many."""
    result, count, put = np.int64(0), 0, member == 0
    for i in range(INLINE):
        there = value >> MEMBER_BITS * i & MEMBER
        if there == 0 or there >> TIER_BITS == holder:
            continue
        if not put and there >> TIER_BITS > holder:
            result |= member << MEMBER_BITS * count
            count, put = count + 1, True
        if count == INLINE:
            return np.int64(-1)
        result |= there << MEMBER_BITS * count
        count += 1
    if put:
        return result
    return result | member << MEMBER_BITS * count if count < INLINE else np.int64(-1)


@inner
def turned(value: Any, holder: Any, tiers: Any, turns: Any, results: Any) -> Any:
    """What a value becomes when a holder has the block in these tiers; -1 where it is unknown."""
    member = np.int64(holder) << TIER_BITS | np.int64(tiers)
    if value < SETS:
        result = _inline(value, holder, member if tiers else np.int64(0))
        if result >= 0:
            return result
    at = _turn_at(value, member, len(results))
    while turns[2 * at] != 0:
        if turns[2 * at] == value and turns[2 * at + 1] == member:
            return results[at]
        at = (at + 1) & (len(results) - 1)
    return np.int64(-1)


@inner
def tiers_in(value: Any, holder: Any, starts: Any, sizes: Any, members: Any) -> Any:
    """The tiers that a holder has, by a value."""
    if value < SETS:
        tiers = np.int64(0)
        for i in range(INLINE):
            there = value >> MEMBER_BITS * i & MEMBER
            tiers |= there & TIERS if there >> TIER_BITS == holder else 0
        return tiers
    start = starts[value - SETS]
    low, high = start, start + sizes[value - SETS]
    while low < high:
        middle = (low + high) // 2
        if members[middle] >> TIER_BITS < holder:
            low = middle + 1
        else:
            high = middle
    if low < start + sizes[value - SETS] and members[low] >> TIER_BITS == holder:
        return members[low] & TIERS
    return 0


@inner
def named_count(value: Any, named: Any, set_named: Any) -> Any:
    """Of how many holders that are named."""
    if value >= SETS:
        return set_named[value - SETS]
    count = np.int64(0)
    for i in range(INLINE):
        there = value >> MEMBER_BITS * i & MEMBER
        count += np.int64(there != 0) & np.int64(named[there >> TIER_BITS])
    return count


@njit(cache=KEPT, **BORROWED)
def remember(turns: Any, results: Any, value: Any, holder: Any, tiers: Any, result: Any) -> None:
    """What a value becomes when a holder has the block in these tiers. There is room for it."""
    member = np.int64(holder) << TIER_BITS | np.int64(tiers)
    at = _turn_at(np.int64(value), member, len(results))
    while turns[2 * at] != 0:
        at = (at + 1) & (len(results) - 1)
    turns[2 * at], turns[2 * at + 1], results[at] = value, member, result
