"""Prompts that were lately refused, so that one which comes again counts once. Whoever is refused
comes back, under another id as often as not: counted anew each time, a few who wait would look like
a crowd, which would be refused for that.

Pure, and bounded: what was refused first is forgotten first. A prompt is known by its last full
block and its length; one of less than a block by its id alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from kvstore.conductor.decision import Ask
from kvstore.kernels.crowd import LATELY

KEPT = 16_384  # some 200 bytes each
_Known: TypeAlias = tuple[str, int, int]


class Refused:
    """Of one crew."""

    def __init__(self) -> None:
        self._since: OrderedDict[_Known, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def was(self, ask: Ask, now: float) -> bool:
        """Whether this prompt was refused within the time that a crowd is a mean of."""
        since = self._since.get(_known(ask))
        return since is not None and now - since < LATELY

    def add(self, ask: Ask, now: float) -> None:
        known = _known(ask)
        self._since[known] = now
        self._since.move_to_end(known)
        if len(self._since) > KEPT:
            self._since.popitem(last=False)


def _known(ask: Ask) -> _Known:
    if not len(ask.prints):
        return ask.request, 0, ask.tokens
    return ask.client, int(ask.prints[-1]), ask.tokens
