"""Why blocks that were held are gone, and how they had been used: a node that is asked for one says
why it has it no more, and one that comes again is known. Those that went the longest ago are
forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kvstore.block import Miss
from kvstore.core.ranking import Seen
from kvstore.kernels.keeping import REMEMBERED_MAX

_NOT_HERE = (Miss.ABSENT, Miss.EVICTED)  # of which nothing says that it is nowhere


class Gone:
    """By stored key, in the order in which they went."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[bytes, tuple[Miss, Seen | None]] = OrderedDict()
        self._elsewhere: OrderedDict[bytes, None] = OrderedDict()

    def why(self, key: bytes) -> Miss:
        """ABSENT, where it never was, or was forgotten; UNREACHABLE, where it could all the same
        have been had of another node."""
        why = self._blocks.get(key, (Miss.ABSENT, None))[0]
        return Miss.UNREACHABLE if why in _NOT_HERE and key in self._elsewhere else why

    def elsewhere(self, keys: Iterable[bytes]) -> None:
        """These, which are not here, are listed by another node that did not give them."""
        for key in keys:
            self._elsewhere[key] = None
            self._elsewhere.move_to_end(key)
        while len(self._elsewhere) > REMEMBERED_MAX:
            self._elsewhere.popitem(last=False)

    def nowhere(self, keys: Iterable[bytes]) -> None:
        """No other node lists these."""
        if self._elsewhere:
            for key in keys:
                self._elsewhere.pop(key, None)

    def add(self, keys: Sequence[bytes], why: Miss, seen: Sequence[Seen | None]) -> None:
        """These have gone, in this order; None of what was not listed."""
        self._blocks.update({key: (why, one) for key, one in zip(keys, seen, strict=True)})

    def back_all(self, keys: Sequence[bytes]) -> list[Seen | None]:
        """These are held again; what was known of each."""
        gone = self._blocks
        self.nowhere(keys)
        if gone.keys().isdisjoint(keys):
            return [None] * len(keys)
        return [gone.pop(key, (Miss.ABSENT, None))[1] for key in keys]

    def fit(self, held: int) -> Iterator[Seen]:
        """Forget what is too many while so many are held; what was known of these."""
        while len(self._blocks) > max(REMEMBERED_MAX, held):
            seen = self._blocks.popitem(last=False)[1][1]
            if seen is not None:
                yield seen
