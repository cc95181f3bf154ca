"""Strips between an engine's pages and slots on a GPU, hashed on the way, a batch a call.

As `kernels.strips`, of whose entries these are bit for bit: a program has one strip, and reads each
of its bytes once. Stream-ordered: whoever waits for the stream finds bytes and entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..shapes import Geometry, Pages
from ..strips import Blocks
from . import xxh3
from .pages import checked, on, widest
from .strip_programs import gather_strip, scatter_strip, verify_strip

WORD_BYTES = 8


def gather(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> None:  # fmt: skip
    """Fill the slots' strips, of `arena` (uint8, on the pages' device), from the engine's pages,
    and their entries in the slots' tables.

    Stream-ordered. Raises `ValueError` for what would reach outside the arena or the block table,
    for strips of fewer than 24 bytes, and where anything is not a multiple of 8 bytes."""
    span = (layer_first, layer_count, head_first, head_count)
    batch = _Batch(arena, geometry, blocks, pages, block_table, span)
    if batch.strips:
        gather_strip[(batch.strips,)](*batch.both, *batch.sizes, *batch.steps, **batch.shape)


def scatter(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> torch.Tensor:  # fmt: skip
    """Fill the engine's pages from the slots; (n,) bool on the device: whether every entry of a
    block held. Of one that is False the engine's pages hold anything. Raises as `gather` does."""
    span = (layer_first, layer_count, head_first, head_count)
    batch = _Batch(arena, geometry, blocks, pages, block_table, span)
    if batch.strips:
        scatter_strip[(batch.strips,)](
            *batch.both, batch.good, *batch.sizes, *batch.steps, **batch.shape
        )
    return batch.good_blocks


def verify(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks,
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> torch.Tensor:  # fmt: skip
    """(n,) bool on the device: of each block, whether every strip's bytes are those its entry was
    made of. Raises as `gather` does."""
    span = (layer_first, layer_count, head_first, head_count)
    nowhere = Pages(np.zeros(layer_count, np.uint64), 0, 0, 0, 0, geometry.block_tokens, 1)
    here = Blocks(
        blocks.payload_offsets, blocks.table_offsets, blocks.tokens, np.zeros_like(blocks.starts)
    )
    batch = _Batch(arena, geometry, here, nowhere, np.zeros(1, np.int64), span)
    if batch.strips:
        words = geometry.parts * geometry.run_bytes // WORD_BYTES
        verify_strip[(batch.strips,)](*batch.slots, batch.good, *batch.sizes, TOKEN_WORDS=words)
    return batch.good_blocks


class _Batch:
    """What the kernels are told of one call."""

    def __init__(
        self, arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
        block_table: NDArray[np.integer], span: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        described = checked(arena, geometry, blocks, pages, block_table, span)
        _check_words(arena, geometry, blocks, pages)
        tables = torch.from_numpy(blocks.columns[1])
        described = torch.cat([described, tables[None]])
        described[0] //= WORD_BYTES
        described[3] //= WORD_BYTES
        device, count = arena.device, len(blocks.tokens)
        secret, described = xxh3.keys(device), described.to(device)
        table, layers = on(device, block_table, pages)
        words = arena.view(torch.int64)
        self.both = (words, layers, table, described, secret)
        self.slots = (words, described, secret)
        self.sizes = (count, geometry.strip_stride // WORD_BYTES, geometry.kv_heads, *span)
        self.steps = tuple(
            step // WORD_BYTES
            for step in (
                pages.page_stride,
                pages.head_stride,
                pages.token_stride,
                pages.part_stride,
            )
        )
        self.shape: dict[str, Any] = {
            "PAGE_TOKENS": pages.page_tokens,
            "PARTS": geometry.parts,
            "RUN_WORDS": geometry.run_bytes // WORD_BYTES,
        }
        self.strips = count * span[1] * span[3]
        self.good = torch.zeros(self.strips, dtype=torch.bool, device=device)
        self._count = count

    @property
    def good_blocks(self) -> torch.Tensor:
        return self.good.view(self._count, -1).all(dim=1)


def _check_words(arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages) -> None:
    tables = blocks.columns[1]
    room = arena.numel() - 8 * geometry.strips
    if len(tables) and not 0 <= tables.min() <= tables.max() <= room:
        raise ValueError(f"table_offsets reach outside the arena's {arena.numel()} bytes")
    if widest(arena, geometry, blocks, pages) < WORD_BYTES or (tables % WORD_BYTES).any():
        raise ValueError(
            "strides, runs and addresses must be multiples of 8 bytes to be hashed here"
        )
    least = geometry.strip_bytes(int(blocks.tokens.min())) if len(blocks.tokens) else WORD_BYTES**2
    if least < xxh3.BYTES_MIN:
        raise ValueError(f"a strip has {least} bytes; here it must have {xxh3.BYTES_MIN} at least")
