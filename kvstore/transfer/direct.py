"""Blocks in the caller's own pages, where whole strips lie dense: they land there and nowhere else.

A strip is dense where the tokens of its head follow each other without gaps, and its block lies in
one page or in pages that follow each other. Then the socket fills the page itself and the strip is
verified where it lies; nothing is staged, and no byte is copied twice.
"""

from __future__ import annotations

import ctypes
from typing import Self

import numpy as np
import numpy.typing as npt

from kvstore.kernels import strips
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import KiB
from kvstore.transfer import socket_kernels
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.protocol import Ints, Memory

socket_kernels.load()

_STRIP_BYTES_MIN = 4 * KiB  # for less, pieces cost more than a copy
_TOGETHER_STRIPS = 16_384  # that are waited for at once: each has a line in a list


class Pages(HashedLanding):
    """A landing whose payloads lie head by head in each layer's pages. For one fragment."""

    def __init__(
        self,
        layout: SlotLayout,
        memory: Memory,
        offsets: Ints,
        tokens: npt.NDArray[np.int32],
        fragment: Fragment,
    ) -> None:
        super().__init__(layout, np.zeros(0, dtype=np.uint8), offsets, tokens)
        self._head_stride, self._fragment = memory.head_stride, fragment
        sizes = layout.token_bytes * tokens.astype(np.int64)
        span = int((offsets + sizes).max()) + (fragment.heads - 1) * memory.head_stride
        self._layer_addresses = memory.addresses(fragment)
        self._layers = [_view(int(at), span) for at in self._layer_addresses]

    @classmethod
    def of(
        cls,
        layout: SlotLayout,
        memory: Memory,
        starts: Ints,
        tokens: npt.NDArray[np.int32],
        fragment: Fragment,
    ) -> Self | None:
        """These blocks where they belong; None where that is not dense. `memory` was checked."""
        if layout.coding is not None:
            return None  # what is stored is not what the engine has
        dense = memory.token_stride == layout.token_bytes
        dense &= layout.parts == 1 or memory.part_stride == layout.run_bytes
        dense &= min(memory.head_stride, memory.page_stride) >= 0 and len(starts) > 0
        if not dense or layout.strip_stride < _STRIP_BYTES_MIN:
            return None
        if fragment.heads > 1 and memory.head_stride < layout.strip_stride:
            return None
        first, last = starts // memory.page_tokens, (starts + tokens - 1) // memory.page_tokens
        joined = memory.page_stride == memory.page_tokens * memory.token_stride
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            if a != b and not (joined and (np.diff(memory.block_table[a : b + 1]) == 1).all()):
                return None
        offsets = memory.block_table[first] * memory.page_stride
        offsets += starts % memory.page_tokens * memory.token_stride
        return cls(layout, memory, offsets, tokens, fragment)

    def pieces(self, row: int, fragment: Fragment) -> list[memoryview]:
        assert fragment == self._fragment, "made for one fragment"
        size, at = self.layout.strip_bytes(int(self.tokens[row])), int(self.offsets[row])
        if self._head_stride == size:
            size *= fragment.heads
            return [layer[at : at + size] for layer in self._layers]
        heads = [at + head * self._head_stride for head in range(fragment.heads)]
        return [layer[one : one + size] for layer in self._layers for one in heads]

    def together(self, fragment: Fragment) -> int:
        return max(1, _TOGETHER_STRIPS // (fragment.layers * fragment.heads))

    def hashed(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        lie = self.addresses(rows, fragment)
        each = np.repeat(self.sizes(rows), lie.shape[1])
        return strips.entries(lie.ravel(), each).reshape(lie.shape)

    def addresses(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        assert fragment == self._fragment, "made for one fragment"
        heads = self._head_stride * np.arange(fragment.heads, dtype=np.int64)
        layers = self._layer_addresses.view(np.int64)[:, None] + heads
        return (self.offsets[rows][:, None] + layers.ravel()).view(np.uint64)

    def sizes(self, rows: Ints) -> Ints:
        return (self.layout.token_bytes * self.tokens[rows].astype(np.int64))[:, None]


def _view(address: int, size: int) -> memoryview:
    """The caller's memory, which it keeps alive and has said is there."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
