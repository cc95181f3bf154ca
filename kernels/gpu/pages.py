"""Paged KV to slot order and back, on a GPU, byte for byte; nothing is hashed.

Any page size, any strides, K and V packed or apart, MLA latents (one part, one head): bytes move in
the widest words that every stride, run and address is a multiple of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ..bounds import check_pages, check_payloads, check_ranges
from ..shapes import Geometry, Pages
from ..strips import Blocks
from .launch import Launch, tile_shape
from .page_programs import gather_tile, scatter_tile
from .tuned import launch_of
from .upload import uploaded

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_KINDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


def gather(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> None:  # fmt: skip
    """Fill the slots' strips, of `arena` (uint8, on the pages' device), from the engine's pages.

    Stream-ordered: it returns before the bytes have moved. Raises `ValueError` for whatever would
    reach outside the arena or the block table; the engine's addresses are the caller's word."""
    span = (layer_first, layer_count, head_first, head_count)
    tiles = Tiles(arena, geometry, blocks, pages, block_table, span)
    tiles.gather(launch_of(arena.device, "gather_tile", tiles.shape))


def scatter(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> None:  # fmt: skip
    """Fill the engine's pages from the slots, as `gather` the other way. Nothing is verified."""
    span = (layer_first, layer_count, head_first, head_count)
    scattering(arena, geometry, blocks, pages, block_table, *span)()


def scattering(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> Callable[[], None]:  # fmt: skip
    """`scatter`, of which the device is told now; what is returned does it, once the slots are
    there."""
    span = (layer_first, layer_count, head_first, head_count)
    tiles = Tiles(arena, geometry, blocks, pages, block_table, span)
    return partial(tiles.scatter, launch_of(arena.device, "scatter_tile", tiles.shape))


class Tiles:
    """What the programs are told of one call, once nothing in it reaches outside of anything."""

    def __init__(
        self, arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
        block_table: NDArray[np.integer], span: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        if geometry.coding:
            what = "strips under a codec are not moved as they are"
            raise ValueError(f"{what}: gpu.strips codes them")
        payloads, _, tokens, starts = checked(arena, geometry, blocks, pages, block_table, span)
        word = widest(arena, geometry, blocks, pages)
        described = np.stack([payloads // word, tokens, starts])
        where = on(arena.device, block_table, pages, described)
        count, self._strip_words = len(tokens), geometry.strip_stride // word
        self._strips = count * span[1] * span[3]
        self._told = (
            arena.view(_WORDS[word]), *where, count, self._strip_words, geometry.kv_heads, *span,
            pages.page_stride // word, pages.head_stride // word,
            pages.token_stride // word, pages.part_stride // word,
        )  # fmt: skip
        self._form: dict[str, Any] = {
            "PAGE_TOKENS": pages.page_tokens,
            "PARTS": geometry.parts,
            "RUN_WORDS": geometry.run_bytes // word,
            "KIND": _KINDS[word],
        }
        self.shape = tile_shape(word, geometry.strip_stride)

    def gather(self, launch: Launch) -> None:
        self._run(gather_tile, launch)

    def scatter(self, launch: Launch) -> None:
        self._run(scatter_tile, launch)

    def _run(self, program: Any, launch: Launch) -> None:
        if self._strips:
            grid = (self._strips * triton.cdiv(self._strip_words, launch.block),)
            program[grid](*self._told, **self._form, BLOCK=launch.block, **launch.how)


def checked(
    arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer], span: tuple[int, int, int, int],
) -> tuple[NDArray[np.int64], ...]:  # fmt: skip
    """The columns of blocks whose payloads and positions reach outside of nothing."""
    if arena.dtype is not torch.uint8 or arena.ndim != 1 or not arena.is_contiguous():
        raise ValueError(
            f"the arena is {arena.dtype} of {tuple(arena.shape)}; it must be uint8, 1-D"
        )
    check_ranges(geometry, *span)
    columns = payloads, _, tokens, starts = blocks.columns
    check_payloads(arena.numel(), geometry, payloads, tokens)
    check_pages(pages, span[1], starts, tokens, np.asarray(block_table, np.int64))
    return columns


def on(
    device: torch.device, block_table: NDArray[np.integer], pages: Pages, *rest: NDArray[np.int64]
) -> tuple[torch.Tensor, ...]:
    """The layers' addresses, the block table and the rest, int64, where the kernels read them."""
    return uploaded([pages.layer_addresses.view(np.int64), block_table, *rest], device)


def widest(arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages) -> int:
    """Bytes of the widest word that everything is a multiple of: 8, 4, 2 or 1."""
    each = [
        *(pages.page_stride, pages.head_stride, pages.token_stride, pages.part_stride),
        *(geometry.run_bytes, arena.data_ptr(), arena.numel()),
        *blocks.payload_offsets.tolist(), *pages.layer_addresses.tolist(),
    ]  # fmt: skip
    return common(each, 8)


def common(each: Iterable[int], most: int) -> int:
    """The largest power of two, up to `most`, that all are multiples of."""
    return math.gcd(most, *each)
