"""Why blocks that were held are gone, and how they had been used: a node that is asked for one says
why it has it no more, and one that comes again is known. Those that went the longest ago are
forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvstore.block import Miss
from kvstore.core.ranking import Seen
from kvstore.kernels.keeping import REMEMBERED_MAX


class Gone:
    """By stored key, in the order in which they went."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[bytes, tuple[Miss, Seen | None]] = OrderedDict()

    def why(self, key: bytes) -> Miss:
        """ABSENT, where it never was, or was forgotten."""
        return self._blocks.get(key, (Miss.ABSENT, None))[0]

    def add(self, keys: Sequence[bytes], why: Miss, seen: Sequence[Seen | None]) -> None:
        """These have gone, in this order; None of what was not listed."""
        self._blocks.update({key: (why, one) for key, one in zip(keys, seen, strict=True)})

    def back_all(self, keys: Sequence[bytes]) -> list[Seen | None]:
        """These are held again; what was known of each."""
        gone = self._blocks
        if gone.keys().isdisjoint(keys):
            return [None] * len(keys)
        return [gone.pop(key, (Miss.ABSENT, None))[1] for key in keys]

    def fit(self, held: int) -> Iterator[Seen]:
        """Forget what is too many while so many are held; what was known of these."""
        while len(self._blocks) > max(REMEMBERED_MAX, held):
            seen = self._blocks.popitem(last=False)[1][1]
            if seen is not None:
                yield seen
