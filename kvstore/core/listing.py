"""What a node lists, as it tells those who follow it: every listed block's tiers, numbered changes.

The index says each change here as it makes it. A follower that has seen the state at one number is
given what came after, as long as that is kept; else it starts anew with all that there is. Whoever
reads the pages one by one, while blocks come and go, and then every change since it began has the
truth: a change says where a block is now, not how it came there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from kvstore.core.fingerprints import (
    Fingerprints,
    Prints,
    Tiers,
    fingerprint,
    fingerprints,
    tiers_of,
)
from kvstore.core.lifecycle import Slot
from kvstore.limits import CHANGES_KEPT

_FEW = 16  # so many are sooner said one by one


@dataclass(frozen=True, slots=True)
class Changes:
    """Consecutive changes: block i is now in tiers i, 0 where it is listed no more."""

    sequence: int  # of the last of them
    prints: Prints
    tiers: Tiers


class Listing:
    """A node's listed blocks, and the last changes of that."""

    def __init__(self, changes_kept: int = CHANGES_KEPT) -> None:
        self._blocks = Fingerprints()
        # Of change n at n % changes_kept; through a view, which is quicker for one than an array.
        self._prints = np.zeros(changes_kept, np.uint64)
        self._tiers = np.zeros(changes_kept, np.uint8)
        self._print_at, self._tiers_at = self._prints.data, self._tiers.data
        self.sequence = 0  # changes since the node started
        self._first = 0  # changes up to this one are not kept

    @property
    def count_max(self) -> int:
        """How many blocks are listed, or some more."""
        return self._blocks.count_max

    def put(self, slot: Slot) -> None:
        """A listed block is where its slot says now."""
        self._say(fingerprint(slot.key), tiers_of(slot))

    def put_new(self, slots: Sequence[Slot]) -> None:
        """Each of these, each once."""
        if len(slots) == 1:
            self.put(slots[0])
            return
        for tiers, some in groupby(slots, tiers_of):
            self.put_all(fingerprints([slot.key for slot in some]), tiers)

    def drop_all(self, keys: list[bytes]) -> None:
        """These blocks are listed no more."""
        if len(keys) > _FEW:
            self.put_all(fingerprints(keys), 0)
            return
        for key in keys:
            self._say(fingerprint(key), 0)

    def put_all(self, prints: Prints, tiers: int) -> None:
        """Many blocks at once, each of them once."""
        if not len(prints):
            return
        count, kept = len(prints), len(self._prints)
        where = np.full(count, tiers, np.uint8)
        self._blocks.put_all(prints, where)
        if count < kept:
            at = np.arange(self.sequence, self.sequence + count) % kept
            self._prints[at], self._tiers[at] = prints, where
        self.sequence += count
        self._first = self.sequence if count >= kept else max(self._first, self.sequence - kept)

    def keeps(self, sequence: int) -> bool:
        """Whether every change after that one is still known."""
        return self._first <= sequence <= self.sequence

    def changes(self, after: int, count_max: int) -> Changes:
        """The next changes after one that is kept."""
        assert self.keeps(after), "changes that are no longer kept"
        last = min(self.sequence, after + count_max)
        at = np.arange(after, last) % len(self._prints)
        return Changes(last, self._prints[at], self._tiers[at])

    def pages(self) -> Iterator[tuple[Prints, Tiers]]:
        """All that is listed, a part at a time, each part as it is then."""
        return self._blocks.pages()

    def tiers(self, prints: Prints) -> Tiers:
        """Of each block that is asked for; 0 for what is not listed."""
        return self._blocks.tiers(prints)

    def items(self) -> Iterator[tuple[int, int]]:
        """Every listed block and its tiers, as numbers."""
        return self._blocks.items()

    def check(self) -> None:
        self._blocks.check()
        assert 0 <= self._first <= self.sequence <= self._first + len(self._prints)

    def _say(self, one: int, tiers: int) -> None:
        self._blocks.put(one, tiers)
        at = self.sequence % len(self._print_at)
        self._print_at[at], self._tiers_at[at] = one, tiers
        self.sequence += 1
        if self.sequence - self._first > len(self._print_at):
            self._first += 1
