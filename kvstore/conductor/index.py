"""The index of the pool: for each block, which holders list it and in which tiers.

Some 20 bytes a block, in one array that is laid out anew when four fifths of it are full. A holder
is a number that this gives out. It is hidden until it is `shown`, so that what it lists can be put
in bit by bit, and is gone from every answer in one step; its blocks are swept out later, a piece at
a time, and only then is its number another's.

What a block's holders become when one is added or leaves is worked out once, and remembered while
there is room. Fingerprints are multiplied by a secret odd factor before they are put in order, so
nobody can name blocks that all come to lie in one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.fingerprints import IN_MEMORY, Prints, Tiers
from kvstore.errors import Overloaded
from kvstore.kernels import pool_index as loops
from kvstore.kernels import pool_word as word
from kvstore.limits import INDEX_BLOCKS_MAX

# Numbers, those included whose blocks are still to be swept out.
HOLDERS_MAX = 1 << word.MEMBER_BITS - word.TIER_BITS
SWEPT_PLACES = 1 << 17  # in one piece: some milliseconds
_CAPACITY_MIN = 1 << 12
_FULL, _GROWTH = 0.82, 1.2  # share of the array that blocks take before it grows, and by how much
_PUT_AT_ONCE = 1 << 12  # blocks, between two looks at whether the array is to grow
_TURNS = 1 << 16  # remembered at most; half of the places for them
_SETS_MIN = 1 << 10
_RETRY_MS = 1_000
_LOOKED_AT = 32  # holders of a chain whose tiers are looked at, those with the most

Lengths = NDArray[np.int64]


class PoolIndex:
    """At most `blocks_max` blocks by fingerprint, holders by number. `factor` is odd."""

    def __init__(self, factor: int, blocks_max: int = INDEX_BLOCKS_MAX) -> None:
        assert factor & 1, "an even factor would give several blocks one place"
        self._factor, self._blocks_max = np.uint64(factor), blocks_max
        self._capacity = _CAPACITY_MIN
        self._words = _empty(self._capacity)
        self._state = np.zeros(3, np.int64)
        self._turns, self._results = (
            np.zeros(2 * 2 * _TURNS, np.int64),
            np.zeros(2 * _TURNS, np.int64),
        )
        self._turn_count = 0
        self._numbers: dict[tuple[int, ...], int] = {}  # of sets, by their members
        self._free_sets: list[int] = []
        self._set_count = 0  # numbers that were ever given out
        self._collect_at = _SETS_MIN
        self._members = np.zeros(_SETS_MIN, np.int64)  # of all sets; those of a set lie together
        self._members_used = 0
        self._starts, self._sizes = np.zeros(_SETS_MIN, np.int64), np.zeros(_SETS_MIN, np.int64)
        self._references = np.zeros(_SETS_MIN, np.int64)  # places that name each set
        self._set_named = np.zeros(_SETS_MIN, np.int64)  # members of each that are shown
        self._named, self._gone = np.zeros(HOLDERS_MAX, np.bool_), np.zeros(HOLDERS_MAX, np.bool_)
        self._counts = np.zeros(HOLDERS_MAX, np.int64)  # blocks of each
        self._free_holders = list(range(HOLDERS_MAX))[::-1]
        self._swept = 0  # places of the pass that is under way
        self._found, self._lengths, self._in_dram = (
            np.zeros(HOLDERS_MAX, np.int64) for _ in range(3)
        )

    def __len__(self) -> int:
        """Blocks that somebody lists, those included who are gone."""
        return int(self._state[loops.BLOCKS])

    @property
    def nbytes(self) -> int:
        """Of memory, but for the sets' own records."""
        arrays = (self._words, self._members, self._starts, self._sizes, self._references)
        return sum(array.nbytes for array in (*arrays, self._set_named, self._turns, self._results))

    @property
    def holders(self) -> int:
        """How many there are that were not dropped."""
        return HOLDERS_MAX - len(self._free_holders) - int(np.count_nonzero(self._gone))

    @property
    def sets(self) -> int:
        """How many sets of holders there are, of more than stand in a place themselves."""
        return len(self._numbers)

    def add(self) -> int:
        """A new holder, hidden, that lists nothing. Raises `Overloaded`."""
        if not self._free_holders:
            raise Overloaded(f"{HOLDERS_MAX} holders, or what is left of them", _RETRY_MS)
        return self._free_holders.pop()

    def show(self, holder: int) -> None:
        """From now on it is in the answers."""
        self._named[holder] = True
        self._name_sets()

    def drop(self, holder: int) -> None:
        """It holds nothing any more; what it listed is swept out by and by."""
        self._named[holder], self._gone[holder] = False, True
        self._name_sets()
        self._release()

    def count(self, holder: int) -> int:
        """How many blocks it lists."""
        return int(self._counts[holder])

    @property
    def counts(self) -> Lengths:
        """The same of each."""
        return self._counts

    def put_all(self, holder: int, prints: Prints, tiers: Tiers) -> None:
        """These blocks are in these tiers of a holder now, 0: in none; in this order. Raises
        `Overloaded` where the index is fuller for it than it may be, and some may be left out."""
        self._collect()
        done, before = 0, len(self)
        while done < len(prints):
            last = min(done + _PUT_AT_ONCE, len(prints))
            loops.put(
                self._words, self._capacity, self._factor, holder, prints, tiers, done, last,
                *self._about_sets(), self._references, self._counts, self._state,
            )  # fmt: skip
            done = int(self._state[loops.STOPPED_AT])
            cause = self._state[loops.CAUSE]
            if cause == loops.TURN_UNKNOWN:
                self._learn(self._value(prints[done]), holder, int(tiers[done]))
            elif cause == loops.FULL or self._is_crowded(before):
                self._grow()

    def tiers(self, holder: int, prints: Prints) -> Tiers:
        """Those in which a holder has each block; 0 where it is not listed."""
        found = np.zeros(len(prints), np.uint8)
        loops.tiers_of(
            self._words, self._capacity, self._factor, holder, prints,
            self._starts, self._sizes, self._members, found,
        )  # fmt: skip
        return found

    def holding(self, prints: Prints) -> Lengths:
        """By holder: how many of these blocks it lists; 0 for those that are not shown."""
        counts = np.zeros(HOLDERS_MAX, np.int64)
        loops.holding(
            self._words, self._capacity, self._factor, prints,
            self._starts, self._sizes, self._members, counts,
        )  # fmt: skip
        return np.where(self._named, counts, 0)

    def longest(self, prints: Prints) -> tuple[Lengths, Lengths]:
        """Holders that are shown and have the first block of a chain, and how many leading blocks
        each of them has. The arrays are good until the next call."""
        count = loops.longest(prints, *self.asking) if self._state[loops.BLOCKS] else 0
        return self._found[:count], self._lengths[:count]

    def longest_in_dram(self, prints: Prints) -> tuple[Lengths, Lengths, Lengths]:
        """The same, and how many of those blocks are in its DRAM or, which is no slower, in HBM: as
        far as it was looked at, see `pool_index.longest_in_dram`."""
        count = loops.longest_in_dram(prints, *self.asking, IN_MEMORY, _LOOKED_AT, self._in_dram)
        return self._found[:count], self._lengths[:count], self._in_dram[:count]

    @property
    def asking(self) -> tuple[Any, ...]:
        """What `pool_index.longest` takes after the chain, good until something is put in."""
        return (
            self._words, self._capacity, self._factor, self._named,
            self._starts, self._sizes, self._members, self._set_named,
            self._found, self._lengths,
        )  # fmt: skip

    def sweep(self) -> bool:
        """Take some of what is gone out; whether there is more."""
        if not self._gone.any():
            return False
        places = len(self._words) // loops.WORDS
        self._collect()
        last = min(self._swept + SWEPT_PLACES, places)
        while self._swept < last:
            loops.sweep(
                self._words, self._capacity, self._swept, last, self._gone,
                *self._about_sets(), self._references, self._counts, self._state,
            )  # fmt: skip
            self._swept = int(self._state[loops.STOPPED_AT])
            if self._state[loops.CAUSE] == loops.TURN_UNKNOWN:
                value = int(self._words[loops.WORDS * self._swept + 1])
                self._learn(value, self._first_gone(value), 0)
        if self._swept == places:
            # Who left meanwhile has blocks in places that were swept before, and what was put in
            # has moved blocks: some may have come past unseen.
            self._swept = 0
            self._release()
        return bool(self._gone.any())

    def check(self) -> None:
        keys, values = self._words.reshape(-1, loops.WORDS).T
        gaps, at = np.flatnonzero(keys == loops.EMPTY), np.flatnonzero(keys != loops.EMPTY)
        keys, values = keys[at], values[at]
        assert len(at) == len(self), "blocks are miscounted"
        assert (keys[1:] > keys[:-1]).all(), "blocks are out of order"
        due = (keys >> np.uint64(32)) * np.uint64(self._capacity) >> np.uint64(32)
        assert (due <= at.astype(np.uint64)).all(), "a block stands before where it is looked for"
        before = np.searchsorted(gaps, at)
        last_gap = np.where(before > 0, gaps[np.maximum(before - 1, 0)], -1)
        assert (last_gap < due.astype(np.int64)).all(), "a gap hides a block"
        assert values.all(), "a block that nobody holds"
        assert (self._words[-4 * loops.WORDS :: loops.WORDS] == loops.EMPTY).all(), "a run ends not"
        values, uses = np.unique(values, return_counts=True)
        counts = np.zeros_like(self._counts)
        used = dict(zip(values.tolist(), uses.tolist(), strict=True))
        for value, count in used.items():
            for member in self._members_of(value):
                assert member & word.TIERS, "a member in no tier"
                counts[member >> word.TIER_BITS] += count
        assert (counts == self._counts).all(), "a holder's blocks are miscounted"
        for members, number in self._numbers.items():
            assert self._members_of(word.SETS + number) == members and len(members) > word.INLINE
            holders = [member >> word.TIER_BITS for member in members]
            assert holders == sorted(set(holders)), "a holder stands twice in a set"
            assert self._references[number] == used.get(word.SETS + number, 0)
            assert self._set_named[number] == self._named[holders].sum(), "a set is miscounted"
        free = self._counts[self._free_holders]
        assert not free.any(), "a free number has blocks"

    def _about_sets(self) -> tuple[NDArray[Any], ...]:
        return self._turns, self._results, self._starts, self._sizes, self._members

    def _value(self, one: np.uint64) -> int:
        """Who holds a block, as its place says."""
        return int(loops.value_of(self._words, self._capacity, self._factor, one))

    def _members_of(self, value: int) -> tuple[int, ...]:
        if value < word.SETS:
            standing = (value >> word.MEMBER_BITS * i & word.MEMBER for i in range(word.INLINE))
            return tuple(member for member in standing if member)
        start, size = self._starts[value - word.SETS], self._sizes[value - word.SETS]
        return tuple(self._members[start : start + size].tolist())

    def _first_gone(self, value: int) -> int:
        holders = (member >> word.TIER_BITS for member in self._members_of(value))
        return next(holder for holder in holders if self._gone[holder])

    def _learn(self, value: int, holder: int, tiers: int) -> None:
        """Work out what a value becomes when a holder has the block in these tiers."""
        others = [one for one in self._members_of(value) if one >> word.TIER_BITS != holder]
        mine = [holder << word.TIER_BITS | tiers] if tiers else []
        result = self._value_of(tuple(sorted(others + mine)))
        if self._turn_count >= _TURNS:
            self._forget_turns()
        self._turn_count += 1
        word.remember(self._turns, self._results, value, holder, tiers, result)

    def _value_of(self, members: tuple[int, ...]) -> int:
        if len(members) <= word.INLINE:
            return sum(member << word.MEMBER_BITS * i for i, member in enumerate(members))
        number = self._numbers.get(members)
        if number is None:
            number = self._numbers[members] = self._new_set(members)
        return word.SETS + number

    def _new_set(self, members: tuple[int, ...]) -> int:
        if self._free_sets:
            number = self._free_sets.pop()
        else:
            number, self._set_count = self._set_count, self._set_count + 1
            if number == len(self._starts):
                self._starts, self._sizes = _doubled(self._starts), _doubled(self._sizes)
                self._references = _doubled(self._references)
                self._set_named = _doubled(self._set_named)
        end = self._members_used + len(members)
        while end > len(self._members):
            self._members = _doubled(self._members)
        self._members[self._members_used : end] = members
        self._starts[number], self._sizes[number] = self._members_used, len(members)
        self._members_used = end
        named = self._named[[member >> word.TIER_BITS for member in members]]
        self._references[number], self._set_named[number] = 0, named.sum()
        return number

    def _name_sets(self) -> None:
        """Count anew how many members of each set are shown."""
        used = self._members[: self._members_used] >> word.TIER_BITS
        sums = np.concatenate([[0], np.cumsum(self._named[used])])
        some = slice(0, self._set_count)
        starts, sizes = self._starts[some], self._sizes[some]
        self._set_named[some] = sums[starts + sizes] - sums[starts]

    def _collect(self) -> None:
        """Forget sets that no place names, when there are many more than there were."""
        if len(self._numbers) < self._collect_at:
            return
        kept = {one: number for one, number in self._numbers.items() if self._references[number]}
        numbers = kept.values()
        self._free_sets = sorted(set(range(self._set_count)).difference(numbers), reverse=True)
        members = np.zeros(max(_SETS_MIN, 2 * sum(map(len, kept))), np.int64)
        self._starts[:], self._sizes[:], end = 0, 0, 0
        for one, number in kept.items():
            members[end : end + len(one)] = one
            self._starts[number], self._sizes[number] = end, len(one)
            end += len(one)
        self._numbers, self._members, self._members_used = kept, members, end
        self._collect_at = max(_SETS_MIN, 2 * len(kept))
        self._forget_turns()

    def _forget_turns(self) -> None:
        self._turns[:] = 0
        self._turn_count = 0

    def _release(self) -> None:
        """Numbers of holders that are gone, and stand nowhere any more, may be given out again."""
        free = np.flatnonzero(self._gone & (self._counts == 0))
        self._gone[free] = False
        self._free_holders += free.tolist()

    def _is_crowded(self, before: int) -> bool:
        """Whether the array is to grow. Where it may not, nobody is refused for a change that has
        made it no fuller than it was: so room is made."""
        may_grow = len(self) < self._blocks_max
        return len(self) > _FULL * self._capacity and (may_grow or len(self) > before)

    def _grow(self) -> None:
        if len(self) >= self._blocks_max:
            raise Overloaded(f"the index has {len(self)} blocks, all that it may have", _RETRY_MS)
        capacity = self._capacity
        while True:
            capacity = int(capacity * _GROWTH)
            wider = _empty(capacity)
            if loops.move(self._words, self._capacity, wider, capacity):
                break
        self._words, self._capacity = wider, capacity


def compiled() -> None:
    """Return once every loop is: some seconds where this is the machine's first time, else a part
    of one. Else the first callers would wait for it."""
    index, prints = PoolIndex(1), np.arange(8, dtype=np.uint64)
    holders = [index.add() for _ in range(word.INLINE + 1)]  # and so a set
    for holder in holders:
        index.put_all(holder, prints, np.ones(len(prints), np.uint8))
        index.show(holder)
    index.longest_in_dram(prints)
    index.holding(prints)
    index.tiers(holders[0], prints)
    index._grow()
    index.drop(holders[0])
    while index.sweep():
        pass


def _empty(capacity: int) -> NDArray[np.uint64]:
    words = np.zeros(loops.WORDS * (capacity + loops.SLACK), np.uint64)
    words[:: loops.WORDS] = loops.EMPTY
    return words


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.zeros_like(array)])
