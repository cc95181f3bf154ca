"""Blocks that come over UCX for memory that may be another's at any moment, as a node's arena is.

Whoever was given up on may still move bytes. So what others are shown is memory beside the arena,
in pieces that one call has at a time; the piece of a call that failed is nobody's before its owner
has hung up. What has landed is copied to where it belongs, and proven there. So a stray byte harms
nothing, and nobody is told where anything of the arena lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import UCX_ASIDE_BYTES, UCX_ASIDE_PIECES
from kvstore.transfer.landing import Landing
from kvstore.transfer.protocol import Ints
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_lane import UcxLane
from kvstore.transfer.ucx_pieces import Pieces

_ATTACH_SECONDS = 3.0  # for the other side to find this one


class Aside:
    """The memory, in pieces. Safe to use from several threads."""

    def __init__(self) -> None:
        self.memory = np.zeros(UCX_ASIDE_BYTES * UCX_ASIDE_PIECES, dtype=np.uint8)
        self.pieces = Pieces(UCX_ASIDE_PIECES, UCX_ASIDE_BYTES)

    def fits(self, layout: SlotLayout) -> bool:
        """Whether a block has room in a piece, and there is one now."""
        return layout.place_bytes <= self.pieces.size and bool(self.pieces.free)


class AsideLane(UcxLane):
    """Reads by way of a piece. Nothing is written over it: nobody needs that yet."""

    def __init__(self, aside: Aside, stall_seconds: float, stream: DataStream) -> None:
        self._aside = aside
        stream.allow(_ATTACH_SECONDS)
        super().__init__(stream)
        stream.allow(stall_seconds)

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        return self._aside.memory

    def read(
        self, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
    ) -> Iterator[Ints]:
        with self.piece(self._aside.pieces) as at:
            beside, every = _Beside(self._aside, at, into, rows), np.arange(len(rows))
            for came in super().read(handles, beside, every, fragment):
                beside.copy(came, rows[came], into, fragment)
                yield came


class _Beside(Landing):
    """Rows of another landing, in a piece whose few places they take in turn."""

    def __init__(self, aside: Aside, piece: int, into: Landing, rows: Ints) -> None:
        size = into.layout.place_bytes
        self._places = min(len(rows), aside.pieces.size // size)
        offsets = piece + size * (np.arange(len(rows), dtype=np.int64) % self._places)
        super().__init__(into.layout, aside.memory, offsets, into.tokens[rows])

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
