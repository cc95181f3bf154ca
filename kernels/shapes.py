"""The two sides of a move as byte counts: a block in its slot, and KV in the engine's pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .strip_move import Steps, strip_bytes

CODECS = ("none", "fp8", "int8")
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Coding:
    """Strips of one byte an element, with a scale for each part of so many tokens."""

    codec: str
    item: str  # at the engine
    group_tokens: int

    def __post_init__(self) -> None:
        if self.codec not in CODECS[1:]:
            raise ValueError(f"codec is {self.codec!r}; it must be {' or '.join(CODECS[1:])}")
        if self.item not in ITEM_BYTES:
            raise ValueError(f"item is {self.item!r}; it must be one of {', '.join(ITEM_BYTES)}")
        if self.group_tokens < 1:
            raise ValueError(f"group_tokens is {self.group_tokens}; it must be at least 1")


@dataclass(frozen=True)
class Geometry:
    """A full block: `[layer][kv head][token][part][run]`, each strip as its coding has it."""

    layers: int
    kv_heads: int
    block_tokens: int
    parts: int
    run_bytes: int  # at the engine
    coding: Coding | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "block_tokens", "parts", "run_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.coding and self.run_bytes % ITEM_BYTES[self.coding.item]:
            raise ValueError(f"run_bytes is {self.run_bytes}; {self.coding.item} is not that wide")

    @property
    def code_bytes(self) -> int:
        """Bytes of a run in its slot."""
        return self.run_bytes // ITEM_BYTES[self.coding.item] if self.coding else self.run_bytes

    @property
    def group_tokens(self) -> int:
        return self.coding.group_tokens if self.coding else 0

    def strip_bytes(self, tokens: int) -> int:
        return int(strip_bytes(tokens, self.parts, self.code_bytes, self.group_tokens))

    @cached_property
    def strip_stride(self) -> int:
        return self.strip_bytes(self.block_tokens)

    @property
    def strips(self) -> int:
        return self.layers * self.kv_heads

    @cached_property
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
