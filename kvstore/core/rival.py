"""What plain LRU would hold of the same blocks, and whether doing otherwise has paid.

Every use says whether the block is held and whether LRU would hold it. Each that LRU alone would
have found costs one credit, each that was found beside it earns one, and what LRU would find earns
a small allowance besides: `SLACK` of its hits is what learning may cost. Without credit the caller
does as LRU does until the allowance has made up for it, so that it never falls far behind. Credit
is bounded, so that what was earned in good times is not spent for long in bad ones. A little is
given at the start, for where LRU finds nothing and so never pays for a try.

Memory: one entry of a dict for each block held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvstore.kernels.keeping import AGAIN, CREDIT_SHARE, GIFT, SLACK


class Rival:
    """Keys that LRU would hold, least recently used first."""

    def __init__(self) -> None:
        self.pays = True  # to do otherwise
        self.held: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self._credit = GIFT

    def use(self, key: bytes, found: bool) -> None:
        """A block is used, and was there or not."""
        self._credit += found
        if key in self.held:
            self._credit -= 1 - SLACK
        if self._credit > 2 * AGAIN and self._credit > (most := len(self.held) / CREDIT_SHARE):
            self._credit = max(2 * AGAIN, most)
        self.pays = self._credit > (0 if self.pays else AGAIN)

    def touch(self, keys: Iterable[bytes]) -> None:
        """These are used now, in this order."""
        held = self.held
        for key in keys:
            held[key] = None
            held.move_to_end(key)

    def hold(self, keys: Iterable[bytes]) -> None:
        """The same of such as are not held."""
        held = self.held
        for key in keys:
            held[key] = None

    def lose(self, key: bytes) -> None:
        """A block is gone for a reason that LRU would have had too."""
        self.held.pop(key, None)

    def fit(self, count: int) -> None:
        """Hold no more than so many."""
        while len(self.held) > count:
            self.held.popitem(last=False)
