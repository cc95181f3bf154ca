"""Equal pieces of memory that others are shown, one for each call that wants one.

Whoever was given up on may still move bytes: so the piece of a call that failed is given back when
its other side has hung up (`UcxLane.piece`), and nobody has it before.
"""

from __future__ import annotations

import threading

from kvstore.errors import Unavailable

TAKE_SECONDS = 0.25  # that a call waits for one: after that another way is quicker


class PiecesTaken(Unavailable):
    """Other calls have all of them. Nothing was asked of anybody."""


class Pieces:
    """`count` of them, of `size` bytes each. Safe to use from several threads."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._changed = threading.Condition()
        self._free = [size * i for i in range(count)]

    @property
    def free(self) -> int:
        """How many there are to be had now."""
        return len(self._free)

    def take(self) -> int:
        """Where in the memory a piece begins that is the caller's now. Waits for one for a bounded
        time; raises `PiecesTaken`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, TAKE_SECONDS):
                raise PiecesTaken(f"all {self.count} pieces of memory for ucx are in use")
            return self._free.pop()

    def give(self, piece: int) -> None:
        with self._changed:
            self._free.append(piece)
            self._changed.notify()
