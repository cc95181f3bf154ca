"""A sequence's blocks on their way between an engine's pages and host memory, piece after piece."""

from __future__ import annotations

from dataclasses import dataclass
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
