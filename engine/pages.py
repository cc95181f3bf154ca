"""Which pages belong to which sequence: a page has one owner, or lies on the free list.

It can promise that because pages move only here, and `check()` recounts them all. A full cache is
a value (None): the caller waits. Freed pages are handed out again last-in, first-out, still warm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvstore.errors import Invalid, InvariantError

BlockTable = npt.NDArray[np.int32]


class PageAllocator:
    """Pages 0..pages-1, and the block table of each owner: int32 (pages owned,), in token order."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise Invalid(f"a cache needs at least 1 page, not {pages}")
        self.pages = pages
        self._free = list(range(pages - 1, -1, -1))
        self._tables: dict[str, BlockTable] = {}

    @property
    def free(self) -> int:
        """Pages nobody owns."""
        return len(self._free)

    def allocate(self, owner: str, pages: int) -> BlockTable | None:
        """A table of `pages` pages for a new owner, or None where fewer are free."""
        if owner in self._tables:
            raise Invalid(f"{owner} has pages already")
        if pages < 1:
            raise Invalid(f"{owner} asks for {pages} pages; at least 1 is meant")
        if pages > len(self._free):
            return None
        self._tables[owner] = table = _table([self._free.pop() for _ in range(pages)])
        return table

    def grow(self, owner: str, pages: int) -> BlockTable | None:
        """The owner's table with so many pages more at its end, or None where fewer are free."""
        table = self._tables.get(owner)
        if table is None:
            raise Invalid(f"{owner} has no pages to add to")
        if pages < 1:
            raise Invalid(f"{owner} asks for {pages} pages more; at least 1 is meant")
        if pages > len(self._free):
            return None
        self._tables[owner] = grown = _table([*table, *(self._free.pop() for _ in range(pages))])
        return grown

    def release(self, owner: str) -> None:
        """Give back all pages of an owner."""
        table = self._tables.pop(owner, None)
        if table is None:
            raise Invalid(f"{owner} has no pages to release")
        self._free.extend(int(page) for page in table[::-1])

    def table(self, owner: str) -> BlockTable:
        """The owner's block table."""
        return self._tables[owner]

    def check(self) -> None:
        """Raise `InvariantError` unless each page is owned once or free once."""
        held = list(self._free)
        for table in self._tables.values():
            held.extend(int(page) for page in table)
        if sorted(held) != list(range(self.pages)):
            lost = sorted(set(range(self.pages)) - set(held))
            twice = sorted({page for page in held if held.count(page) > 1})
            raise InvariantError(f"pages lost: {lost}, held twice: {twice}")


def _table(pages: Sequence[int]) -> BlockTable:
    """Read-only: whoever copies into pages must not be able to change whose they are."""
    table = np.array(pages, dtype=np.int32)
    table.flags.writeable = False
    return table
