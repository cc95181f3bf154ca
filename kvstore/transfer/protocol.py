"""The seam between callers and the ways bytes move: what every transport promises.

A move names slots by `Slots` and the caller's side by `Memory`. Whatever a transport reports as
moved has been verified strip by strip; a slot that changed hands meanwhile is reported, not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvstore.errors import OutOfRange
from kvstore.layout import Fragment, SlotLayout

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """n slots of one layout, as a node placed them. Row i is the i-th block of the call."""

    offsets: Ints  # of the slots' heads in the arena, bytes
    generations: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]
    handles: npt.NDArray[np.object_]  # what the node gave out for each: bytes
    roots: npt.NDArray[np.uint8]  # (n, 16), as the owner said; of a block being written zeros

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def rooted(self) -> Mask:
        """Which of them the owner's root vouches for."""
        return np.asarray(self.roots.any(axis=1))

    def pick(self, rows: Any) -> Slots:
        return Slots(
            self.offsets[rows],
            self.generations[rows],
            self.tokens[rows],
            self.handles[rows],
            self.roots[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The caller's side: the layout descriptor of paged KV, with where block tokens lie in it.

    It holds layers `layer_first` on and `heads` KV heads from `head_first` on. Token p of the
    sequence lies in page `block_table[p // page_tokens]` at row `p % page_tokens`; strides are
    bytes.
    """

    layer_addresses: npt.NDArray[np.uint64]
    page_stride: int
    head_stride: int
    token_stride: int
    part_stride: int
    page_tokens: int
    page_count: int
    block_table: Ints
    heads: int
    layer_first: int = 0
    head_first: int = 0
    owners: tuple[Any, ...] = field(default=(), repr=False)  # keep the memory alive
    staging: Any = field(default=None, repr=False)  # of memory in HBM: see `transfer.staged`

    @property
    def fragment(self) -> Fragment:
        """The layers and heads it holds."""
        layers = len(self.layer_addresses)
        return Fragment(self.layer_first, layers, self.head_first, self.heads)

    def check(self, part: Fragment, starts: Ints, tokens: npt.NDArray[np.int32]) -> None:
        """Raise `OutOfRange` unless it has room for a part of blocks with these tokens."""
        if not self.fragment.covers(part):
            raise OutOfRange(f"{part}: the memory holds {self.fragment}")
        if not len(starts):
            return
        first, last = starts // self.page_tokens, (starts + tokens - 1) // self.page_tokens
        room = len(self.block_table)
        if last.max() >= room:
            raise OutOfRange(
                f"the sequence has {int((starts + tokens).max())} tokens; {room} pages of "
                f"{self.page_tokens}, as the block table has, hold {room * self.page_tokens}"
            )
        edges = np.zeros(room + 1, dtype=np.int64)
        np.add.at(edges, first, 1)
        np.add.at(edges, last + 1, -1)
        used = np.flatnonzero(np.cumsum(edges[:-1]))
        pages = self.block_table[used]
        wrong = used[(pages < 0) | (pages >= self.page_count)]
        if len(wrong):
            at = int(wrong[0])
            raise OutOfRange(
                f"block_table[{at}] is {self.block_table[at]}; there are pages "
                f"0..{self.page_count - 1}"
            )

    def addresses(self, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """Where the fragment's first head begins in each of its layers."""
        first = fragment.layer_first - self.layer_first
        assert self.fragment.covers(fragment), "checked before a move"
        shift = (fragment.head_first - self.head_first) * self.head_stride
        there = self.layer_addresses[first : first + fragment.layers].view(np.int64) + shift
        return there.view(np.uint64)


class Ahead(Protocol):
    """A way on which an owner sends what a session opens there, without being asked for it.

    Open is told of the `connections`, and its answer says how many blocks come: the leading ones of
    those that it found."""

    connections: list[int]
    blocks: int  # that come; until Open has answered, as many as may

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """As `Transport.load`, of just those blocks. Once."""

    def close(self) -> None:
        """Nothing more is wanted of it."""


class Transport(Protocol):
    """Moves between one node's slots and this process."""

    name: str

    def lends(self, layout: SlotLayout) -> bool:
        """Whether such slots may lie in HBM that the node lends of this caller's own GPU."""

    def give_back(self) -> None:
        """Use no HBM of the node's any more, which is gone: while somebody has it mapped it stays
        taken, and the next node gets none."""

    def takes(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """Which of these blocks `store` and `load` move between slots and memory in HBM as it is,
        now. Of no others are they asked to. Raises `Invalid` where slots lie in HBM and the memory
        does not, or not so that it can be moved there."""

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        """Caller -> slots, each strip hashed. Block i begins at token `starts[i]`. What `takes`
        said may be over: raises `PiecesTaken`, with nothing moved, as `load` does."""

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """Slots -> caller; True for each block all of whose strips had their hash, by a strip
        table that has the block's root, where that has one."""

    def ahead(self, layout: SlotLayout, count: int, fragment: Fragment) -> Ahead | None:
        """A way for a fragment of so many blocks that are about to be opened; to be closed. None
        where there is none to spare, and where it would gain nothing."""

    def verify(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Mask:
        """As `load` says, in place, moving nothing."""

    def written(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Ints:
        """Leading layers of the fragment that the writer has finished, for each block."""

    def stirred(self, layout: SlotLayout, slots: Slots, layers: Ints, fragment: Fragment) -> bool:
        """Whether there may be news of any slot of which `layers[i]` layers are known.

        True if its next layer is written, or if it fills no more. Cheap: asked while waiting.
        """

    def current(self, slots: Slots, sound: Mask) -> Mask:
        """Whether each slot still holds the bytes of the block that was opened. Of what was copied
        from there, `sound` was proven; that may be answer enough."""

    def filling(self, slots: Slots) -> Mask:
        """Whether a writer may still add layers to each."""

    def views(self, layout: SlotLayout, slots: Slots) -> list[npt.NDArray[np.uint8]]:
        """Read-only payloads, with no copy: (strips, strip_stride) bytes each."""

    def close(self) -> None: ...
