"""Blocks that come over UCX for memory that may be another's at any moment, as a node's arena is.

Whoever was given up on may still move bytes. So what others are shown is memory beside the arena,
in pieces that one call has at a time; the piece of a call that failed is nobody's before its owner
has hung up. What has landed is copied to where it belongs, and proven there. So a stray byte harms
nothing, and nobody is told where anything of the arena lies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kvstore.errors import Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import UCX_ASIDE_BYTES, UCX_ASIDE_PIECES
from kvstore.transfer.landing import Landing
from kvstore.transfer.protocol import Ints
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_lane import UcxLane

_TAKE_SECONDS = 0.25  # that a call waits for a piece
_ATTACH_SECONDS = 3.0  # for the other side to find this one


class Aside:
    """The pieces. Safe to use from several threads."""

    def __init__(self) -> None:
        self.memory = np.zeros(UCX_ASIDE_BYTES * UCX_ASIDE_PIECES, dtype=np.uint8)
        self._changed = threading.Condition()
        self._free = [UCX_ASIDE_BYTES * i for i in range(UCX_ASIDE_PIECES)]

    def fits(self, layout: SlotLayout) -> bool:
        """Whether a block has room in a piece, and there is one now."""
        return layout.payload_bytes <= UCX_ASIDE_BYTES and bool(self._free)

    def take(self) -> int:
        """Where in the memory a piece begins that is the caller's now. Raises `Unavailable`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, _TAKE_SECONDS):
                raise Unavailable(f"all {UCX_ASIDE_PIECES} pieces of memory for ucx are in use")
            return self._free.pop()

    def give(self, piece: int) -> None:
        with self._changed:
            self._free.append(piece)
            self._changed.notify()


class AsideLane(UcxLane):
    """Reads by way of a piece. Nothing is written over it: nobody needs that yet."""

    def __init__(self, aside: Aside, stall_seconds: float, stream: DataStream) -> None:
        self._aside, self._piece = aside, -1
        stream.allow(_ATTACH_SECONDS)
        super().__init__(stream)
        stream.allow(stall_seconds)

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        return self._aside.memory

    def read(
        self, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
    ) -> Iterator[Ints]:
        self._piece = self._aside.take()
        beside, every = _Beside(self._aside.memory, self._piece, into, rows), np.arange(len(rows))
        for came in super().read(handles, beside, every, fragment):
            beside.copy(came, rows[came], into, fragment)
            yield came
        self._free_piece()

    def _let_go(self) -> None:
        super()._let_go()
        self._free_piece()

    def _free_piece(self) -> None:
        if self._piece >= 0:
            self._aside.give(self._piece)
        self._piece = -1


class _Beside(Landing):
    """Rows of another landing, in a piece whose few places they take in turn."""

    def __init__(
        self, memory: npt.NDArray[np.uint8], piece: int, into: Landing, rows: Ints
    ) -> None:
        size = into.layout.payload_bytes
        self._places = min(len(rows), UCX_ASIDE_BYTES // size)
        offsets = piece + size * (np.arange(len(rows), dtype=np.int64) % self._places)
        super().__init__(into.layout, memory, offsets, into.tokens[rows])

    @property
    def places(self) -> int:
        return self._places

    def together(self, fragment: Fragment) -> int:
        return min(self._places, super().together(fragment))

    def copy(self, here: Ints, there: Ints, into: Landing, fragment: Fragment) -> None:
        """What came to rows `here` of this, to rows `there` of the other."""
        into.runs[there] = self.runs[here]
        for mine, its in zip(here.tolist(), there.tolist(), strict=True):
            for start, size in self.layout.runs(int(self.tokens[mine]), fragment):
                first, then = int(self.offsets[mine]) + start, int(into.offsets[its]) + start
                into.memory[then : then + size] = self.memory[first : first + size]
