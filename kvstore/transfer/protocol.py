"""The seam between callers and the ways bytes move: what every transport promises.

A move names slots by `Slots` and the caller's side by `Memory`. Whatever a transport reports as
moved has been verified strip by strip; a slot that changed hands meanwhile is reported, not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvstore.layout import Fragment, SlotLayout

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """n slots of one layout, as a node placed them. Row i is the i-th block of the call."""

    offsets: Ints  # of the slots' heads in the arena, bytes
    generations: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets)

    def pick(self, rows: Any) -> Slots:
        return Slots(self.offsets[rows], self.generations[rows], self.tokens[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The caller's side: the layout descriptor of paged KV, with where block tokens lie in it.

    It holds layers `layer_first` on and KV heads `head_first` on. Token p of the sequence lies in
    page `block_table[p // page_tokens]` at row `p % page_tokens`; strides are bytes.
    """

    layer_addresses: npt.NDArray[np.uint64]
    page_stride: int
    head_stride: int
    token_stride: int
    part_stride: int
    page_tokens: int
    page_count: int
    block_table: Ints
    layer_first: int = 0
    head_first: int = 0
    owners: tuple[Any, ...] = field(default=(), repr=False)  # keep the memory alive

    def addresses(self, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """Where the fragment's first head begins in each of its layers."""
        first = fragment.layer_first - self.layer_first
        assert first >= 0 and first + fragment.layers <= len(self.layer_addresses)
        assert fragment.head_first >= self.head_first
        shift = (fragment.head_first - self.head_first) * self.head_stride
        return self.layer_addresses[first : first + fragment.layers] + np.uint64(shift)


class Transport(Protocol):
    """Moves between one node's slots and this process."""

    name: str

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        """Caller -> slots, each strip hashed. Block i begins at token `starts[i]`."""

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """Slots -> caller; True for each block all of whose strips had their hash."""

    def verify(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Mask:
        """Hash in place, moving nothing."""

    def written(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Ints:
        """Leading layers of the fragment that the writer has finished, for each block."""

    def roots(self, layout: SlotLayout, slots: Slots) -> npt.NDArray[np.uint8]:
        """(n, 16): the root of each slot as its table stands now."""

    def current(self, slots: Slots) -> Mask:
        """Whether each slot still holds the block that was opened, filling or sealed."""

    def views(self, layout: SlotLayout, slots: Slots) -> list[npt.NDArray[np.uint8]]:
        """Read-only payloads, with no copy: (strips, block_tokens, token_bytes) each."""

    def close(self) -> None: ...
