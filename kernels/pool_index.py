"""The loops of the pool's index: which holders list a block, for tens of millions of blocks.

Blocks lie in one array, ordered by a mix of their fingerprints, with gaps: a block is looked for
where an even spread would have it, and is a few places further on. So a look-up is one or two lines
of memory, an array grows in one pass from its front to its end, and nothing is ever marked deleted.

A place is two words: the mixed fingerprint, `EMPTY` where there is none, and who holds the block,
see `pool_word`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, KEPT, inner
from .pool_word import SETS, TIER_BITS, member_at, member_count, named_count, tiers_in, turned

WORDS = 2  # of a place
EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)  # more than any block's
PART_BITS = 3  # of how many parts a span of a chain is looked at in
PARTS = 1 << PART_BITS
SLACK = 4_096  # places behind the last that a block can be due at
# What `put` and `sweep` leave in `state`, beside how far they came.
BLOCKS, STOPPED_AT, CAUSE = range(3)
DONE, FULL, TURN_UNKNOWN = range(3)

_HALF = np.uint64(32)
_LOOKED_AT = 4  # places, with no question between them
_LAST = WORDS * (_LOOKED_AT - 1)  # from the first of them to the last
_TAIL = _LOOKED_AT  # places at the end of the array that stay empty: every run of blocks ends


@inner
def _mixed(one: Any, factor: Any) -> Any:
    """Of a fingerprint; two of them, of all there are, share one."""
    return min(one * factor, EMPTY - np.uint64(1))


@inner
def _due(mixed: Any, capacity: Any) -> Any:
    """Where an even spread would have it."""
    return np.int64(((mixed >> _HALF) * np.uint64(capacity)) >> _HALF)


@inner
def _place(words: Any, capacity: Any, mixed: Any) -> Any:
    """Of the block, or of the first behind where it would stand."""
    at = _due(mixed, capacity)
    # How far on it is nobody can guess, so four are looked at with no question between them: all
    # that stands behind it, or behind a gap, is more.
    passed = np.int64(words[WORDS * at] < mixed) + np.int64(words[WORDS * at + 2] < mixed)
    passed += np.int64(words[WORDS * at + 4] < mixed) + np.int64(words[WORDS * at + 6] < mixed)
    at += passed
    if passed == _LOOKED_AT:
        while words[WORDS * at] < mixed:
            at += 1
    return at


@inner
def _value(words: Any, capacity: Any, mixed: Any) -> Any:
    """Who holds a block; 0 for nobody."""
    at = _place(words, capacity, mixed)
    return np.int64(words[WORDS * at + 1]) if words[WORDS * at] == mixed else np.int64(0)


@inner
def _shift_right(words: Any, at: Any) -> Any:
    """Make room at a place; False where the array has none."""
    end = at
    while words[WORDS * end] != EMPTY:
        end += 1
    if WORDS * (end + 1 + _TAIL) > len(words):
        return False
    for word in range(WORDS * (end + 1) - 1, WORDS * (at + 1) - 1, -1):
        words[word] = words[word - WORDS]
    return True


@inner
def _close_up(words: Any, capacity: Any, at: Any) -> None:
    """Take out what stands at a place; those behind it move up as far as they are due."""
    hole, behind = at, at + 1
    while words[WORDS * behind] != EMPTY and _due(words[WORDS * behind], capacity) < behind:
        for word in range(WORDS):
            words[WORDS * hole + word] = words[WORDS * behind + word]
        hole, behind = behind, behind + 1
    words[WORDS * hole], words[WORDS * hole + 1] = EMPTY, 0


@inner
def _change(
    words: Any, capacity: Any, at: Any, before: Any, now: Any, references: Any, state: Any
) -> None:
    """Let a place's value, which is not 0, be another."""
    if before >= SETS:
        references[before - SETS] -= 1
    if now >= SETS:
        references[now - SETS] += 1
    if now == 0:
        _close_up(words, capacity, at)
        state[BLOCKS] -= 1
    else:
        words[WORDS * at + 1] = np.uint64(now)


@njit(cache=KEPT, **BORROWED)
def value_of(words: Any, capacity: Any, factor: Any, one: Any) -> Any:
    """Who holds the block of a fingerprint."""
    return _value(words, capacity, _mixed(one, factor))


@njit(nogil=True, cache=KEPT, **BORROWED)
def put(
    words: Any, capacity: Any, factor: Any, holder: Any,
    prints: Any, tiers: Any, first: Any, last: Any,
    turns: Any, results: Any, starts: Any, sizes: Any, members: Any,
    references: Any, counts: Any, state: Any,
) -> None:  # fmt: skip
    """A holder has these blocks in these tiers now, 0 for none; from number `first` up to
    `last`."""
    for i in range(first, last):
        mixed = _mixed(prints[i], factor)
        at = _place(words, capacity, mixed)
        there = words[WORDS * at] == mixed
        before = np.int64(words[WORDS * at + 1]) if there else np.int64(0)
        now = turned(before, holder, tiers[i], turns, results)
        if now < 0:
            state[STOPPED_AT], state[CAUSE] = i, TURN_UNKNOWN
            return
        had = tiers_in(before, holder, starts, sizes, members)
        if there:
            _change(words, capacity, at, before, now, references, state)
        elif now != 0:
            if not _shift_right(words, at):
                state[STOPPED_AT], state[CAUSE] = i, FULL
                return
            words[WORDS * at], words[WORDS * at + 1] = mixed, np.uint64(now)
            state[BLOCKS] += 1
        counts[holder] += np.int64(tiers[i] != 0) - np.int64(had != 0)
    state[STOPPED_AT], state[CAUSE] = last, DONE


@njit(nogil=True, cache=KEPT, **BORROWED)
def sweep(
    words: Any, capacity: Any, first: Any, last: Any, gone: Any,
    turns: Any, results: Any, starts: Any, sizes: Any, members: Any,
    references: Any, counts: Any, state: Any,
) -> None:  # fmt: skip
    """Take holders that are `gone` out of the places from `first` up to `last`."""
    at = first
    while at < last:
        value = np.int64(words[WORDS * at + 1])
        holder = np.int64(-1)
        for one in range(member_count(value, sizes)):
            holder = member_at(value, one, starts, members) >> TIER_BITS
            if gone[holder]:
                break
            holder = np.int64(-1)
        if holder < 0:
            at += 1
            continue
        now = turned(value, holder, 0, turns, results)
        if now < 0:
            state[STOPPED_AT], state[CAUSE] = at, TURN_UNKNOWN
            return
        _change(words, capacity, at, value, now, references, state)
        counts[holder] -= 1  # the same place again: another may be gone, or have moved up
    state[STOPPED_AT], state[CAUSE] = at, DONE


@njit(nogil=True, cache=KEPT, **BORROWED)
def move(words: Any, capacity: Any, wider: Any, wider_capacity: Any) -> Any:
    """Lay all blocks out in an empty array; False where its end is too near."""
    free = np.int64(0)
    for at in range(len(words) // WORDS):
        if words[WORDS * at] == EMPTY:
            continue
        to = max(free, _due(words[WORDS * at], wider_capacity))
        if WORDS * (to + 1 + _TAIL) > len(wider):
            return False
        wider[WORDS * to], wider[WORDS * to + 1] = words[WORDS * at], words[WORDS * at + 1]
        free = to + 1
    return True


@njit(nogil=True, cache=KEPT, **BORROWED)
def tiers_of(
    words: Any, capacity: Any, factor: Any, holder: Any, prints: Any,
    starts: Any, sizes: Any, members: Any, found: Any,
) -> None:  # fmt: skip
    """The tiers in which a holder has each block."""
    for i in range(len(prints)):
        value = _value(words, capacity, _mixed(prints[i], factor))
        found[i] = 0 if value == 0 else tiers_in(value, holder, starts, sizes, members)


@njit(nogil=True, cache=KEPT, **BORROWED)
def holding(
    words: Any, capacity: Any, factor: Any, prints: Any,
    starts: Any, sizes: Any, members: Any, counts: Any,
) -> None:  # fmt: skip
    """Add to each holder's count how many of these blocks it lists."""
    for one in prints:
        value = _value(words, capacity, _mixed(one, factor))
        for at in range(member_count(value, sizes)):
            counts[member_at(value, at, starts, members) >> TIER_BITS] += 1


@inner
def _leaving(
    value: Any, beyond: Any, length: Any, named: Any,
    starts: Any, sizes: Any, members: Any, holders: Any, lengths: Any, found: Any,
) -> Any:  # fmt: skip
    """Holders of a value that are not in the one beyond it have blocks up to there. Both have them
    by their numbers."""
    at, last = 0, member_count(beyond, sizes)
    for one in range(member_count(value, sizes)):
        holder = member_at(value, one, starts, members) >> TIER_BITS
        while at < last and member_at(beyond, at, starts, members) >> TIER_BITS < holder:
            at += 1
        if at < last and member_at(beyond, at, starts, members) >> TIER_BITS == holder:
            continue
        if named[holder] and found < len(holders):
            holders[found], lengths[found] = holder, length
            found += 1
    return found


@inner
def _fetched(low: Any, long: Any, prints: Any, words: Any, capacity: Any, factor: Any) -> Any:
    """Something of where each block is that parts a span, so that all of it is on its way."""
    seen = np.uint64(0)
    for part in range(1, PARTS):
        due = WORDS * _due(_mixed(prints[low + (long * part >> PART_BITS)], factor), capacity)
        seen |= words[due] | words[due + _LAST]  # two lines of memory, mostly
    return seen


@inner
def _last_with(
    count: Any, low: Any, high: Any, least: Any, prints: Any, words: Any, capacity: Any,
    factor: Any, named: Any, set_named: Any, spare: Any,
) -> Any:  # fmt: skip
    """The last block from `low`, which has as many holders as `count`, up to `high`, which has
    fewer; and the first that was seen to have no more than `least`, or `high`.

    Several halvings at a time: whatever they may come to look at is on its way before them.
    """
    seen, bare = np.uint64(0), high
    while high - low > 1:
        long, having = high - low, 0
        seen |= _fetched(low, long, prints, words, capacity, factor)
        half = PARTS >> 1
        while half:
            at = low + (long * (having + half) >> PART_BITS)
            value = _value(words, capacity, _mixed(prints[at], factor))
            there = named_count(value, named, set_named)
            having += half * (there >= count)
            bare = at if there <= least else bare
            half >>= 1
        low, high = low + (long * having >> PART_BITS), low + (long * (having + 1) >> PART_BITS)
    spare[len(spare) - 1] = np.int64(seen)
    return low, bare


@njit(nogil=True, cache=KEPT, **BORROWED)
def longest(
    prints: Any, words: Any, capacity: Any, factor: Any, named: Any,
    starts: Any, sizes: Any, members: Any, set_named: Any, holders: Any, lengths: Any,
) -> Any:  # fmt: skip
    """Every named holder of a chain's first block, and how many leading blocks it has; the shortest
    first. Returns how many holders.

    What a holder has is closed towards the start, so those of a block are among those of the block
    before it, and where there are as many they are the same: of each number of holders only the
    last block is looked for.
    """
    end, found, low = len(prints), 0, 0
    if not end:
        return found
    seen = _fetched(low, end - 1, prints, words, capacity, factor)
    lengths[len(lengths) - 1] = np.int64(seen)  # or it would be of no use, and not be fetched
    value = _value(words, capacity, _mixed(prints[0], factor))
    ending = _value(words, capacity, _mixed(prints[end - 1], factor))
    at_end = named_count(ending, named, set_named)
    count = named_count(value, named, set_named)
    bare = end - 1
    while count > at_end:
        last, bare = _last_with(
            count, low, bare, at_end, prints, words, capacity, factor, named, set_named, lengths
        )
        low = last + 1
        beyond = _value(words, capacity, _mixed(prints[low], factor))
        found = _leaving(value, beyond, low, named, starts, sizes, members, holders, lengths, found)
        value, count = beyond, min(count - 1, named_count(beyond, named, set_named))
    if count > 0:
        found = _leaving(
            value, np.int64(0), end, named, starts, sizes, members, holders, lengths, found
        )
    return found


@njit(nogil=True, cache=KEPT, **BORROWED)
def longest_in_dram(
    prints: Any, words: Any, capacity: Any, factor: Any, named: Any,
    starts: Any, sizes: Any, members: Any, set_named: Any, holders: Any, lengths: Any,
    bit: Any, looked_at: Any, found: Any,
) -> Any:  # fmt: skip
    """As `longest`; and how many leading blocks each holder has in DRAM, of those it has.

    What is in DRAM is taken for closed towards the start too, which it mostly is, and only the
    last `looked_at` holders are looked at: the others are taken to have all there.
    """
    count = longest(
        prints, words, capacity, factor, named,
        starts, sizes, members, set_named, holders, lengths,
    )  # fmt: skip
    for i in range(count):
        found[i] = lengths[i]
    for i in range(max(0, count - looked_at), count):
        low, high = np.int64(-1), lengths[i]  # the block at `low` is there, the one at `high` not
        middle = high - 1
        while high - low > 1:
            value = _value(words, capacity, _mixed(prints[middle], factor))
            if value != 0 and tiers_in(value, holders[i], starts, sizes, members) & bit:
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        found[i] = high
    return count
