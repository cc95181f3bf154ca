"""Which blocks an engine holds itself, and what of that one conductor is yet to be told.

What is yet to be told is held once a block, however often it comes and goes meanwhile, so nothing
piles up where a conductor is slow; and it is told in pieces, to one that begins anew as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from kvstore.limits import ENGINE_BLOCKS_MAX, REPORT_BLOCKS_MAX
from kvstore.wire.v1 import conductor_pb2 as pb


class OwnBlocks:
    """By their hashes, for one conductor. Whoever has it locks it."""

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}  # as they came: prefixes first
        self._untold: dict[bytes, bool] = {}  # whether each is held, and was not
        self._cleared = False  # it is to be told that all it was told is void

    def __bool__(self) -> bool:
        """Whether there is something to tell."""
        return self._cleared or bool(self._untold)

    def begin(self) -> None:
        """Who is told now knows nothing."""
        self._cleared, self._untold = False, dict.fromkeys(self._held, True)

    def hold(self, hashes: Iterable[bytes]) -> None:
        for one in hashes:
            if one not in self._held and len(self._held) < ENGINE_BLOCKS_MAX:
                self._held[one] = None
                self._change(one, True)

    def drop(self, hashes: Iterable[bytes]) -> None:
        for one in hashes:
            if one in self._held:
                del self._held[one]
                self._change(one, False)

    def clear(self) -> None:
        self._held.clear()
        self._untold.clear()
        self._cleared = True

    def tell(self, message: pb.ReportRequest) -> None:
        """Put into a message as much as it may have."""
        if self._cleared:
            message.cleared, self._cleared = True, False
        some = list(islice(self._untold.items(), REPORT_BLOCKS_MAX))
        for one, held in some:
            del self._untold[one]
            (message.held if held else message.dropped).append(one)

    def _change(self, one: bytes, held: bool) -> None:
        if self._untold.pop(one, held) is held:
            self._untold[one] = held
