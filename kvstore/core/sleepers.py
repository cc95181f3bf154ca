"""Blocks that an earlier run left on SSD and nobody has asked for since: rows, and no objects.

A restart finds hundreds of thousands of them, and most are not asked for before long. So a block
costs some 160 bytes here until somebody wants it, or its place; then it wakes: it gets its
`Slot`, after all blocks before it, and is as any other from then on. A row is never put back.

Rows lie in the order of the first words of their keys. Those behind a hole (the block before them
is nowhere) are unlisted, as awake ones would be.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.fingerprints import Prints
from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.slabs import Slabs

KEY = 32  # bytes of a stored key
NOBODY = -1  # no slot has this number
ROW = np.dtype(
    [
        *(("key", f"S{KEY}"), ("parent", f"S{KEY}"), ("root", "S16")),
        *(("place", "<u8"), ("generation", "<u8"), ("origin", "<u8")),
        *(("owner", "<u4"), ("tenant", "<u4"), ("tokens", "<u4"), ("short", "?")),
    ]
)

_ROW = struct.Struct("<32s32s16sQQQIII?")
assert ROW.itemsize == _ROW.size

Rows = NDArray[np.int32]
Covers = Callable[[Owner, str], bool]  # whether something is about blocks of this owner and tenant


class Sleepers:
    """Rows of one SSD tier. `owners`, each with the bytes of its slots, and `tenants` are what the
    rows' numbers of them mean."""

    def __init__(
        self,
        table: NDArray[np.void] | None = None,
        owners: Sequence[tuple[Owner, int]] = (),
        tenants: Sequence[str] = (),
        slabs: Slabs | None = None,
    ) -> None:
        """`table`: of dtype `ROW`, in order, each key there once, of places that `slabs` has
        restored, none of them in a circle: see `first_words` and `firsts`."""
        table = np.zeros(0, ROW) if table is None else table
        self._owners, self._tenants, self._slabs = owners, tenants, slabs
        self._place, self._owner = table["place"].copy(), table["owner"].copy()
        self._tenant = table["tenant"].copy()
        self._bytes = memoryview(table.tobytes())
        self._first = memoryview(first_words(table["key"]).tobytes()).cast("Q")
        self._parent = parent = parents(table)
        rooted = _is_zero(table["parent"])[firsts(parent)]
        self._by_parent = np.argsort(parent, kind="stable").astype(np.int32)
        begins = np.searchsorted(parent[self._by_parent], np.arange(len(table) + 1))
        self._begins = begins.astype(np.int32)  # of each row's children in `_by_parent`
        self._lost: dict[bytes, list[int]] = {}  # parent that has no row -> rows
        for row in np.flatnonzero((parent < 0) & ~_is_zero(table["parent"])).tolist():
            self._lost.setdefault(bytes(self._bytes[self._at(row) + KEY :][:KEY]), []).append(row)
        self._asleep = np.ones(len(table), bool)
        self._proven = np.zeros(len(table), bool)  # read since: see Slot.unproven
        self._listed = rooted
        self._count = len(table)
        self._unlisted = int(np.count_nonzero(~rooted))
        leaves = np.flatnonzero(np.diff(self._begins) == 0)
        order = leaves[np.lexsort((table["generation"][leaves], rooted[leaves]))]
        kinds = self._owner * np.int64(max(1, len(tenants))) + table["tenant"]
        self._oldest = {
            (owner, tenant): iter(order[kinds[order] == number].tolist())
            for number, (owner, tenant) in enumerate(
                product([owner for owner, _ in owners], tenants)
            )
        }

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return self.find(key) is not None

    @property
    def unlisted(self) -> int:
        return self._unlisted

    def find(self, key: bytes) -> int | None:
        """The row of a block that sleeps."""
        row = self._row(key) if self._count else None
        return row if row is not None and self._asleep[row] else None

    def listed(self, row: int) -> bool:
        return bool(self._listed[row])

    def line(self, row: int) -> list[int]:
        """A sleeping row after those before it that sleep, the first of the prompt first."""
        found = [row]
        while (row := int(self._parent[row])) >= 0 and self._asleep[row]:
            found.append(row)
        return found[::-1]

    def behind(self, key: bytes) -> list[int]:
        """Sleeping rows right behind a block that may be awake, asleep or nowhere."""
        if not self._count:
            return []
        row = self._row(key)
        if row is None:
            return [one for one in self._lost.get(key, ()) if self._asleep[one]]
        children = self._by_parent[self._begins[row] : self._begins[row + 1]]
        found: list[int] = children[self._asleep[children]].tolist()
        return found

    def key(self, row: int) -> bytes:
        """Of a row, asleep or not."""
        at = self._at(int(row))
        return bytes(self._bytes[at : at + KEY])

    def rows(self, covers: Covers) -> Rows:
        """Those that sleep now, of all owners and tenants that are covered."""
        kinds = [[covers(owner, tenant) for tenant in self._tenants] for owner, _ in self._owners]
        if not self._count:
            return np.zeros(0, np.int32)
        covered = np.array(kinds, bool)[self._owner, self._tenant]
        return np.flatnonzero(self._asleep & covered).astype(np.int32)

    def peek(self, row: int) -> Slot:
        """A likeness of the slot that a sleeping row will have, in no slab. It sleeps on."""
        words = _ROW.unpack_from(self._bytes, self._at(row))
        owner = self._owners[words[6]][0]
        slot = Slot(NOBODY, words[3], owner, generation=words[4], tier=Tier.SSD)
        self._tell(slot, row, words)
        slot.listed = self.listed(row)
        return slot

    def prove(self, row: int) -> None:
        """Its bytes were read, and are what its record says."""
        self._proven[row] = True

    def wake(self, row: int) -> Slot:
        """Its slot, SEALED and in no index. Every row before it is awake already."""
        assert self._asleep[row] and self._slabs is not None
        words = _ROW.unpack_from(self._bytes, self._at(row))
        slot = self._slabs.wake(words[3], words[4])
        assert slot.owner == self._owners[words[6]][0], "restored for another owner"
        self._tell(slot, row, words)
        slot.sleeping = len(self.behind(slot.key))
        self._asleep[row] = False
        self._count -= 1
        self._unlisted -= not self._listed[row]
        return slot

    def list_behind(self, keys: Iterable[bytes], listed: bool) -> Prints:
        """What sleeps behind these blocks is listed from now on, or is not; whose state that
        changes."""
        if not self._count:
            return np.zeros(0, np.uint64)
        rows = np.array([row for key in keys for row in self.behind(key)], np.int32)
        changed = [rows[:0]]
        while len(rows):
            changed.append(rows[self._listed[rows] != listed])
            self._listed[rows] = listed
            rows = self._children(rows)
        every = np.concatenate(changed)
        self._unlisted += -len(every) if listed else len(every)
        return self._prints(every)

    def listed_prints(self) -> Prints:
        """Of all that sleep and are listed."""
        return self._prints(np.flatnonzero(self._asleep & self._listed).astype(np.int32))

    def places(self) -> list[tuple[Owner, str]]:
        """Owners and tenants that may have sleepers."""
        return list(self._oldest) if self._count else []

    def oldest(self, owner: Owner, tenant: str) -> Iterator[int]:
        """Rows of their leaves that sleep, the longest written first. Each is named only once, so
        whoever takes one wakes it."""
        rows = self._oldest.get((owner, tenant), iter(()))
        return (row for row in rows if self._asleep[row])

    def within(self, begin: int, end: int) -> Iterator[int]:
        """Rows of blocks that sleep in these places: one that wakes with another is not named."""
        if not self._count:
            return
        there = self._asleep & (self._place >= begin) & (self._place < end)
        yield from (row for row in np.flatnonzero(there).tolist() if self._asleep[row])

    def owners(self) -> dict[Owner, int]:
        counts = np.bincount(self._owner[self._asleep], minlength=len(self._owners))
        return {self._owners[i][0]: int(n) for i, n in enumerate(counts) if n}

    def bytes_of(self) -> dict[str, int]:
        """Bytes of the places that each tenant's sleepers have."""
        sizes = np.array([size for _, size in self._owners], np.int64)[self._owner[self._asleep]]
        tenants = self._tenant[self._asleep]
        sums = np.bincount(tenants, weights=sizes, minlength=len(self._tenants))
        return {self._tenants[i]: int(size) for i, size in enumerate(sums) if size}

    def check(self) -> None:
        assert self._count == np.count_nonzero(self._asleep), "sleepers are miscounted"
        unlisted = np.count_nonzero(self._asleep & ~self._listed)
        assert self._unlisted == unlisted, "unlisted sleepers are miscounted"
        rows = np.flatnonzero(self._asleep)
        behind = rows[self._parent[rows] >= 0]
        before = self._parent[behind]
        inside = self._asleep[before]
        assert (self._listed[behind[inside]] == self._listed[before[inside]]).all(), "not closed"

    def _tell(self, slot: Slot, row: int, words: tuple[Any, ...]) -> None:
        """A new slot is that of the row's block, SEALED."""
        slot.key, parent, slot.root, _, _, slot.origin, _, tenant, slot.tokens, slot.short = words
        slot.parent, slot.tenant = parent if any(parent) else b"", self._tenants[tenant]
        slot.unproven = not self._proven[row]
        slot.move(State.FILLING)
        slot.move(State.SEALED)

    def _prints(self, rows: Rows) -> Prints:
        firsts = np.frombuffer(self._first, np.uint64)[rows]
        return firsts.byteswap()  # a word has a key's first bytes in the other order

    def _row(self, key: bytes) -> int | None:
        first = int.from_bytes(key[:8], "big")
        row = bisect_left(self._first, first)
        while row < len(self._first) and self._first[row] == first:
            if self._bytes[self._at(row) : self._at(row) + KEY] == key:
                return row
            row += 1
        return None

    @staticmethod
    def _at(row: int) -> int:
        return row * _ROW.size

    def _children(self, rows: Rows) -> Rows:
        """Sleeping rows right behind these."""
        begins, counts = self._begins[rows], self._begins[rows + 1] - self._begins[rows]
        starts = np.repeat(begins - np.cumsum(counts) + counts, counts)
        children = self._by_parent[starts + np.arange(len(starts))]
        return children[self._asleep[children]]


def parents(table: NDArray[np.void]) -> Rows:
    """Of each row of an ordered `ROW` table the row before it, or -1."""
    keys, parent = table["key"], table["parent"]
    if not len(table):
        return np.zeros(0, np.int32)
    words, wanted = first_words(keys), first_words(parent)
    at = np.searchsorted(words, wanted)
    begins = ~_is_zero(parent)
    found = np.full(len(table), -1, np.int32)
    for _ in range(len(table)):  # once, but for keys that begin with the same word
        at = np.minimum(at, len(table) - 1)
        same = begins & (keys[at] == parent)
        found[same] = at[same]
        begins &= ~same & (words[at] == wanted) & (at + 1 < len(table))
        if not begins.any():
            break
        at += 1
    return found


def firsts(parent: Rows) -> Rows:
    """Of each row the first of its line; a row that has a parent nevertheless is in a circle."""
    above = np.where(parent >= 0, parent, np.arange(len(parent), dtype=np.int32))
    for _ in range(len(parent).bit_length()):  # each round looks twice as far back
        further = above[above]
        if (further == above).all():
            break
        above = further
    return above


def first_words(keys: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """The first eight bytes of each key as a number; numbers are ordered as the keys are."""
    words = np.frombuffer(np.ascontiguousarray(keys).tobytes(), ">u8").reshape(-1, KEY // 8)
    return words[:, 0].astype(np.uint64)


def _is_zero(keys: NDArray[np.bytes_]) -> NDArray[np.bool_]:
    zero: NDArray[np.bool_] = keys == b""
    return zero
