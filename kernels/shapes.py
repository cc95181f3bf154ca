"""The two sides of a move as byte counts: a block in its slot, and KV in the engine's pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .strip_move import Steps


@dataclass(frozen=True)
class Geometry:
    """A full block: `[layer][kv head][token][part][run]`."""

    layers: int
    kv_heads: int
    block_tokens: int
    parts: int
    run_bytes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")

    @property
    def strip_stride(self) -> int:
        return self.block_tokens * self.parts * self.run_bytes

    @property
    def strips(self) -> int:
        return self.layers * self.kv_heads

    @property
    def payload_bytes(self) -> int:
        return self.strips * self.strip_stride


@dataclass(frozen=True)
class Pages:
    """Where the engine keeps KV, in bytes. Heads count from the engine's own first one."""

    layer_addresses: NDArray[np.uint64]
    page_stride: int
    head_stride: int
    token_stride: int
    part_stride: int
    page_tokens: int
    page_count: int

    def __post_init__(self) -> None:
        for name in ("page_tokens", "page_count"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def steps(self) -> Steps:
        return Steps(
            self.page_stride,
            self.head_stride,
            self.token_stride,
            self.part_stride,
            self.page_tokens,
        )
