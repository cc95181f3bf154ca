"""A sequence's blocks on their way between an engine's pages and host memory, piece after piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shapes import Geometry, Pages
from .strips import Blocks


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks in an engine's pages; `geometry` has the layers and heads that move, and no others."""

    geometry: Geometry
    pages: Pages
    block_table: NDArray[np.integer[Any]]
    tokens: NDArray[np.integer[Any]]
    starts: NDArray[np.integer[Any]]

    def blocks(self, rows: NDArray[np.int64], first: int) -> Blocks:
        """Some of them, row i at `i - first` payloads."""
        places = (rows - first) * self.geometry.payload_bytes
        tokens = self.tokens[rows].astype(np.int32)
        return Blocks(places, np.zeros_like(places), tokens, self.starts[rows].astype(np.int64))

    def about(self, blocks: Blocks) -> tuple[Any, ...]:
        """What `gather` and `scatter` take beside the slots' memory, for all layers and heads."""
        span = (0, self.geometry.layers, 0, self.geometry.kv_heads)
        return (self.geometry, blocks, self.pages, self.block_table, *span)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a run, one payload after the other, in host memory."""

    rows: slice
    host: NDArray[np.uint8]


@lru_cache(1024)
def _part(geometry: Geometry, layers: int, heads: int) -> Geometry:
    return replace(geometry, layers=layers, kv_heads=heads)


@dataclass(frozen=True, slots=True)
class Places:
    """Slots in host memory, of whose layers and heads those of `span` move: layer and head first
    and count. `blocks` are the slots' payloads and strip tables in `memory`, a run of words."""

    memory: NDArray[np.uint8]
    geometry: Geometry
    span: tuple[int, int, int, int]
    blocks: Blocks

    @property
    def moved(self) -> Geometry:
        """A slot that has what moves and nothing else."""
        _, layers, _, heads = self.span
        return _part(self.geometry, layers, heads)

    @property
    def strips(self) -> NDArray[np.int64]:
        """Which of a slot's strips move, in the order in which `moved` has them."""
        layer_first, layers, head_first, heads = self.span
        each = np.arange(layer_first, layer_first + layers, dtype=np.int64)[:, None]
        return (each * self.geometry.kv_heads + np.arange(head_first, head_first + heads)).ravel()

    def runs(self, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Bytes that lie together in a block's payload, and in what moves of it: where they begin
        there, where here, and how many they are. What no token has stays as it is."""
        geometry, (layer_first, layers, head_first, heads) = self.geometry, self.span
        size, stride = geometry.strip_bytes(tokens), geometry.strip_stride
        if size < stride:
            for here, there in enumerate(self.strips.tolist()):
                yield there * stride, here * stride, size
        elif heads == geometry.kv_heads:
            yield layer_first * heads * stride, 0, layers * heads * stride
        else:
            for layer in range(layers):
                there = (layer_first + layer) * geometry.kv_heads + head_first
                yield there * stride, layer * heads * stride, heads * stride
