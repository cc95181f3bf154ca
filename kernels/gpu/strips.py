"""Strips between an engine's pages and slots on a GPU, hashed on the way, a batch a call.

As `kernels.strips`, byte for byte and entry for entry. A program has one strip, and hashes what it
moves; only the last 64 bytes, and strips of up to 240, it reads from the slot once more. Under a
codec it has one strip's tokens that share scales, and the strip is hashed where it lies in its
slot. So whoever scatters from a slot that may be given to another block asks afterwards whether it
was. Stream-ordered: whoever waits for the stream finds bytes and entries.

All raise `ValueError` for what would reach outside the arena or the block table, for strips of
fewer than 24 bytes, and where slots are not at multiples of 8 bytes or pages not at multiples of 8,
or of an element under a codec. The engine's addresses are the caller's word.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..shapes import Geometry, Pages
from ..strips import Blocks
from .batch import Batch


def gather(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> None:  # fmt: skip
    """Fill the slots' strips, of `arena` (uint8, on the pages' device), from the engine's pages,
    and their entries in the slots' tables."""
    span = (layer_first, layer_count, head_first, head_count)
    b = Batch(arena, geometry, blocks, pages, block_table, span)
    if not b.strips:
        return
    if not geometry.coding:
        b.gather_strip(b.launch("gather_strip"))
        return
    b.encode_group(b.launch("encode_group"))
    b.enter_strip(b.launch("enter_strip"))


def scatter(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> torch.Tensor:  # fmt: skip
    """Fill the engine's pages from the slots; (n,) bool on the device: whether every entry of a
    block held. Of one that is False the engine's pages hold anything."""
    span = (layer_first, layer_count, head_first, head_count)
    b = Batch(arena, geometry, blocks, pages, block_table, span)
    scatter_told(b)
    return b.good_blocks


def scatter_told(b: Batch) -> None:
    """As `scatter`, of what the device was told before; `b.good` says of each strip whether it
    held."""
    if not b.strips:
        return
    if not b.coded:
        b.scatter_strip(b.launch("scatter_strip"))
        return
    b.verify_strip(b.launch("verify_strip"))
    b.decode_group(b.launch("decode_group"))


def verify(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks,
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> torch.Tensor:  # fmt: skip
    """(n,) bool on the device: of each block, whether every strip's bytes are those its entry was
    made of."""
    span = (layer_first, layer_count, head_first, head_count)
    nowhere = Pages(np.zeros(layer_count, np.uint64), 0, 0, 0, 0, geometry.block_tokens, 1)
    payloads, tables, tokens, starts = blocks.columns
    here = Blocks(payloads, tables, tokens.astype(np.int32), np.zeros_like(starts))
    b = Batch(arena, geometry, here, nowhere, np.zeros(1, np.int64), span)
    verify_told(b)
    return b.good_blocks


def verify_told(b: Batch) -> None:
    """As `verify`, of what the device was told before, be it to scatter that too; `b.good` says of
    each strip whether it holds."""
    if b.strips:
        b.verify_strip(b.launch("verify_strip"))
