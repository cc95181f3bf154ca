"""Blocks by their fingerprints, and the tiers each is in: some 9 bytes a block, for millions.

A fingerprint is the first 8 bytes of a stored key, little endian. Keys are the output of a PRF, so
fingerprints fall evenly into pages by their first byte; a page is a sorted array that is never
changed, and what was said since it was made. It is made anew when that has grown to a share of it,
so one change costs little and no change moves more than a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.core.lifecycle import Slot

IN_DRAM, ON_SSD, IN_HBM = 1, 2, 4  # bits of a block's tiers; none: it is not listed
IN_MEMORY = IN_DRAM | IN_HBM
TIERS_MAX = IN_MEMORY | ON_SSD
PAGES = 256
SHIFT = 56  # of a fingerprint, to the number of its page

_RECENT_MIN = 256  # changes that a page takes before it is made anew
_RECENT_SHARE = 32  # or one for so many that it has, if that is more
_FEW = 16 * PAGES  # fewer are looked at one by one sooner than page by page

Prints = NDArray[np.uint64]
Tiers = NDArray[np.uint8]


def fingerprint(key: bytes) -> int:
    """Of a stored key."""
    return int.from_bytes(key[:8], "little")


def fingerprints(keys: list[bytes]) -> Prints:
    """Of stored keys, each of 8 bytes or more."""
    return np.frombuffer(b"".join([key[:8] for key in keys]), "<u8").astype(np.uint64)


def tiers_of(slot: Slot) -> int:
    """Where a sealed block is, as its slot in the index tells."""
    return 1 << slot.tier | (0 if slot.twin is None else 1 << slot.twin.tier)


_NO_PRINTS: Prints = np.zeros(0, np.uint64)  # of every page that has none: nobody changes it
_NO_TIERS: Tiers = np.zeros(0, np.uint8)


class _Page:
    __slots__ = ("prints", "recent", "room", "tiers")

    def __init__(self) -> None:
        self.prints = _NO_PRINTS  # sorted, each once
        self.tiers = _NO_TIERS  # of each, and none is 0
        self.recent: dict[int, int] = {}  # what was said since
        self.room = _RECENT_MIN  # changes that it takes before it is made anew

    def get(self, one: int) -> int:
        tiers = self.recent.get(one)
        if tiers is not None:
            return tiers
        at = int(self.prints.searchsorted(np.uint64(one)))
        there = at < len(self.prints) and int(self.prints[at]) == one
        return int(self.tiers[at]) if there else 0

    def settle(self) -> None:
        """Put what was said lately where the rest is."""
        if self.recent:
            count = len(self.recent)
            said = np.fromiter(self.recent.keys(), np.uint64, count)
            tiers = np.fromiter(self.recent.values(), np.uint8, count)
            self.recent = {}
            order = np.argsort(said)
            self.merge(said[order], tiers[order])

    def merge(self, said: Prints, tiers: Tiers) -> None:
        """`said`: sorted, each once. The arrays are new ones: somebody may be reading the old."""
        at = self.prints.searchsorted(said)
        known = at < len(self.prints)
        known[known] = self.prints[at[known]] == said[known]
        fresh = ~known & (tiers != 0)
        changed = self.tiers.copy()
        changed[at[known]] = tiers[known]
        prints = np.insert(self.prints, at[fresh], said[fresh])
        changed = np.insert(changed, at[fresh], tiers[fresh])
        stays = changed != 0
        whole = bool(stays.all())
        self.prints = prints if whole else prints[stays]
        self.tiers = changed if whole else changed[stays]
        self.room = max(_RECENT_MIN, len(self.prints) // _RECENT_SHARE)


class Fingerprints:
    """Fingerprints of listed blocks and their tiers. Of two blocks with one fingerprint the last
    that something was said of counts: a wrong answer costs whoever asks a round trip."""

    def __init__(self) -> None:
        self._pages = [_Page() for _ in range(PAGES)]

    @property
    def count_max(self) -> int:
        """As many as there are, and some more where changes are not in their pages yet."""
        return sum(len(page.prints) + len(page.recent) for page in self._pages)

    def get(self, one: int) -> int:
        """Tiers of a block, 0 if it is not listed."""
        return self._pages[one >> SHIFT].get(one)

    def put(self, one: int, tiers: int) -> None:
        """The block is in these tiers now; 0: it is listed no more."""
        page = self._pages[one >> SHIFT]
        page.recent[one] = tiers
        if len(page.recent) > page.room:
            page.settle()

    def put_all(self, prints: Prints, tiers: Tiers) -> None:
        """The same for many, in this order: of one that stands there twice the last counts."""
        if len(prints) <= _FEW:
            pages = self._pages
            for one, where in zip(prints.tolist(), tiers.tolist(), strict=True):
                page = pages[one >> SHIFT]
                page.recent[one] = where
                if len(page.recent) > page.room:
                    page.settle()
            return
        for number, rows in _by_page(prints):
            page = self._pages[number]
            page.settle()
            # The first of each in the reverse order is the last of it.
            once, first = np.unique(prints[rows][::-1], return_index=True)
            page.merge(once, tiers[rows][::-1][first])

    def tiers(self, prints: Prints) -> Tiers:
        """Of each block that is asked for."""
        if len(prints) <= _FEW:
            return np.array([self.get(one) for one in prints.tolist()], np.uint8)
        found = np.zeros(len(prints), np.uint8)
        for number, rows in _by_page(prints):
            page, asked = self._pages[number], prints[rows]
            at = page.prints.searchsorted(asked)
            there = at < len(page.prints)
            there[there] = page.prints[at[there]] == asked[there]
            known = np.zeros(len(asked), np.uint8)
            known[there] = page.tiers[at[there]]
            if page.recent:
                for row, one in enumerate(asked.tolist()):
                    if (said := page.recent.get(one)) is not None:
                        known[row] = said
            found[rows] = known
        return found

    def pages(self) -> Iterator[tuple[Prints, Tiers]]:
        """All there is, a page at a time, in ascending order. Each page is as it is when its turn
        comes, and its arrays are never changed after."""
        for page in self._pages:
            page.settle()
            yield page.prints, page.tiers

    def items(self) -> Iterator[tuple[int, int]]:
        """Every listed block and its tiers, as numbers; pages stay as they are."""
        for page in self._pages:
            if not (page.recent or len(page.prints)):
                continue
            before = zip(page.prints.tolist(), page.tiers.tolist(), strict=True)
            yield from (one for one in before if one[0] not in page.recent)
            yield from (one for one in page.recent.items() if one[1])

    def check(self) -> None:
        used = [n for n, page in enumerate(self._pages) if len(page.prints) or page.recent]
        for number in used:
            page = self._pages[number]
            assert len(page.prints) == len(page.tiers), "a block without tiers"
            assert (page.prints[1:] > page.prints[:-1]).all(), "a page is out of order"
            assert (page.prints >> np.uint64(SHIFT) == number).all(), "a block in another page"
            assert ((page.tiers > 0) & (page.tiers <= TIERS_MAX)).all(), (
                "in no tier, or in none known"
            )
            assert all(one >> SHIFT == number for one in page.recent), "a block in another page"
            assert all(0 <= tiers <= TIERS_MAX for tiers in page.recent.values())
            assert len(page.recent) <= page.room, "a page was to be made anew"


def _by_page(prints: Prints) -> Iterator[tuple[int, Any]]:
    """Numbers of the pages, each with its rows, which keep their order."""
    numbers = (prints >> np.uint64(SHIFT)).astype(np.uint8)
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, ends):
        yield int(numbers[rows[0]]), rows
