"""Strips between an engine's pages and the arena's slots, hashed on the way, a batch a call.

A strip is one (layer, KV head) of a block: contiguous in its slot, and vouched for by its own entry
of the slot's strip table, XXH3-64 of its bytes with 0 told as 1. Under a codec its bytes are codes,
made and unmade on the way. An entry is stored after its
bytes, so another process that sees it nonzero may read them. Every size is checked before a kernel
runs; the engine's addresses cannot be, and are the caller's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import strip_loops
from .bounds import (
    check_arena,
    check_pages,
    check_payloads,
    check_ranges,
    check_tables,
    integers,
    within,
)
from .shapes import CODECS, ITEM_BYTES, Geometry, Pages
from .strip_move import Slot


@dataclass(frozen=True)
class Blocks:
    """A batch: block i holds positions `starts[i] .. starts[i] + tokens[i]` of the sequence."""

    payload_offsets: NDArray[np.int64]
    table_offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def columns(self) -> tuple[NDArray[np.int64], ...]:
        """Payload offsets, table offsets, tokens and starts, of one length."""
        count = len(self.payload_offsets)
        return tuple(integers(name, values, count) for name, values in vars(self).items())

    def pick(self, rows: slice | NDArray[Any]) -> Blocks:
        """Some of them."""
        return Blocks(*(values[rows] for values in vars(self).values()))


def gather(
    arena: NDArray[np.uint8], geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> None:  # fmt: skip
    """Fill the slots' strips from the engine's pages, each strip's entry after its bytes.

    A slot that held a block before must have had these entries zeroed: they are watermarks.
    """
    span = (layer_first, layer_count, head_first, head_count)
    _transfer(arena, geometry, blocks, pages, block_table, span, outward=False)


def scatter(
    arena: NDArray[np.uint8], geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """Fill the engine's pages from the slots, and say of each block whether every entry held.

    Bytes are hashed as they are copied, so of a block that is False the engine's pages hold
    anything. Its copy stops at the first strip that differs or is not written.
    """
    span = (layer_first, layer_count, head_first, head_count)
    return _transfer(arena, geometry, blocks, pages, block_table, span, outward=True)


def verify(
    arena: NDArray[np.uint8], geometry: Geometry, blocks: Blocks,
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """Of each block, whether every strip's bytes are those its entry was made of."""
    address = check_arena(arena, writable=False)
    slot = _slot(geometry, (layer_first, layer_count, head_first, head_count))
    payloads, tables, tokens, _ = blocks.columns
    check_tables(arena, geometry, tables)
    check_payloads(arena.size, geometry, payloads, tokens)
    good = np.zeros(len(payloads), np.bool_)
    strip_loops.verify(address, slot, payloads, tables, tokens, good)
    return good


def entries(addresses: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What a strip table says of strips wherever they lie: on the caller's word."""
    places = np.require(addresses, np.uint64, ["C", "W"])
    lengths = integers("sizes", sizes, len(places))
    within("sizes", lengths, 0, np.iinfo(np.int64).max, "a strip's bytes")
    found = np.zeros(len(places), np.uint64)
    strip_loops.entries(places, lengths, found)
    return found


def written(
    arena: NDArray[np.uint8], geometry: Geometry, blocks: Blocks,
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Of each block, how many layers from `layer_first` on have all of the heads' entries."""
    address = check_arena(arena, writable=False)
    slot = _slot(geometry, (layer_first, layer_count, head_first, head_count))
    tables = integers("table_offsets", blocks.table_offsets)
    check_tables(arena, geometry, tables)
    layers = np.zeros(len(tables), np.int64)
    strip_loops.written(address, slot, tables, layers)
    return layers


def roots(arena: NDArray[np.uint8], offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """XXH3-128 of `size` bytes at each offset, as canonical digests."""
    address = check_arena(arena, writable=False)
    if not 0 <= size <= arena.size:
        raise ValueError(f"size is {size}; it must be 0..{arena.size}, the arena's")
    places = integers("offsets", offsets)
    within("offsets", places, 0, arena.size - size, "a range in the arena")
    words = np.zeros((len(places), 2), np.uint64)
    strip_loops.roots(address, places, size, words)
    return words.astype(">u8").view(np.uint8)


def _slot(geometry: Geometry, span: tuple[int, int, int, int]) -> Slot:
    check_ranges(geometry, *span)
    g = geometry
    codec, item = 0, 0
    if g.coding:
        codec, item = CODECS.index(g.coding.codec), list(ITEM_BYTES).index(g.coding.item)
    runs = (g.parts, g.run_bytes, g.code_bytes, codec, item, g.group_tokens)
    return Slot(g.kv_heads, g.strip_stride, *runs, *span)


def _transfer(
    arena: NDArray[np.uint8], geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer], span: tuple[int, int, int, int], outward: bool,
) -> NDArray[np.bool_]:  # fmt: skip
    address = check_arena(arena, writable=not outward)
    slot = _slot(geometry, span)
    payloads, tables, tokens, starts = blocks.columns
    table = integers("block_table", block_table)
    check_tables(arena, geometry, tables)
    check_payloads(arena.size, geometry, payloads, tokens)
    check_pages(pages, slot.layer_count, starts, tokens, table)
    layers = np.require(pages.layer_addresses, np.uint64, ["C", "W"])
    good = np.zeros(len(payloads), np.bool_)
    strip_loops.transfer(
        address, slot, pages.steps, layers, payloads, tables, tokens, starts, table, outward, good
    )
    return good
