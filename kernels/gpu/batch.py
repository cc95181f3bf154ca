"""What the programs are told of one call, once nothing in it reaches outside of anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from ..shapes import CODECS, ITEM_BYTES, Geometry, Pages
from ..strips import Blocks
from . import xxh3
from .pages import checked, common, on

WORD_BYTES = 8


class Batch:
    """Strips of a span of some blocks, in words of 8 bytes; engines' steps in `unit` bytes."""

    def __init__(
        self, arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
        block_table: NDArray[np.integer], span: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        payloads, tokens, starts = checked(arena, geometry, blocks, pages, block_table, span)
        coding = geometry.coding
        unit = ITEM_BYTES[coding.item] if coding else WORD_BYTES
        _check_slots(arena, geometry, blocks)
        steps = (pages.page_stride, pages.head_stride, pages.token_stride, pages.part_stride)
        if common([*steps, geometry.run_bytes, *pages.layer_addresses.tolist()], unit) < unit:
            what = coding.item if coding else "8 bytes"
            raise ValueError(f"the pages' strides, runs and addresses are not multiples of {what}")
        sizes = np.array([geometry.strip_bytes(int(count)) for count in tokens], np.int64)
        if len(sizes) and sizes.min() < xxh3.BYTES_MIN:
            least = f"here it must have {xxh3.BYTES_MIN} at least"
            raise ValueError(f"a strip has {sizes.min()} bytes; {least}")
        tables = blocks.columns[1]
        words = [one // WORD_BYTES for one in (payloads, tables, sizes)]
        described = np.stack([words[0], tokens, starts, words[1], words[2]])
        device, self._count = arena.device, len(tokens)
        self.memory = arena.view(torch.int64)
        self.blocks = torch.from_numpy(described).to(device)
        self.secret = xxh3.keys(device)
        self.table, self.layers = on(device, block_table, pages)
        strip_words = geometry.strip_stride // WORD_BYTES
        self.sizes = (self._count, strip_words, geometry.kv_heads, *span)
        self.steps = tuple(step // unit for step in steps)
        self.shape: dict[str, Any] = {
            "PAGE_TOKENS": pages.page_tokens,
            "PARTS": geometry.parts,
            "RUN": geometry.run_bytes // unit,
        }
        self.coded: dict[str, Any] = {}
        if coding:
            self.coded = {
                "GROUP": coding.group_tokens,
                "TOKENS": triton.next_power_of_2(coding.group_tokens),
                "ITEMS": triton.next_power_of_2(geometry.run_bytes // unit),
                "FP8": coding.codec == CODECS[1],
                "ITEM": list(ITEM_BYTES).index(coding.item),
            }
        self.groups = -(-geometry.block_tokens // geometry.group_tokens) if coding else 1
        self._each = span[1] * span[3]
        self.strips = self._count * self._each
        self.good = torch.zeros(self.strips, dtype=torch.bool, device=device)

    @property
    def good_blocks(self) -> torch.Tensor:
        return self.good.reshape(self._count, self._each).all(dim=1)


def _check_slots(arena: torch.Tensor, geometry: Geometry, blocks: Blocks) -> None:
    payloads, tables, _, _ = blocks.columns
    room = arena.numel() - 8 * geometry.strips
    if len(tables) and not 0 <= tables.min() <= tables.max() <= room:
        raise ValueError(f"table_offsets reach outside the arena's {arena.numel()} bytes")
    each = [arena.data_ptr(), arena.numel(), *payloads.tolist(), *tables.tolist()]
    if common([*each, geometry.strip_stride], WORD_BYTES) < WORD_BYTES:
        raise ValueError("payloads, tables and strips in the arena must be at multiples of 8 bytes")
