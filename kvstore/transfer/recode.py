"""KV as it would be had it been stored and loaded again: what a codec does to it, without a pool.

Stored KV of a coded namespace can be held against computed KV only when both have been coded: a
codec moves every element, and in a manner that no mean over many of them takes away.
"""

from __future__ import annotations

import numpy as np

from kvstore.kernels import strips
from kvstore.layout import TABLE_OFFSET, SlotLayout
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.protocol import Memory


def recode(layout: SlotLayout, memory: Memory, blocks: int) -> None:
    """Code and decode, where they lie, the first `blocks` full blocks that `memory` holds.

    Raises `OutOfRange` where it has no room for so many. Of codec none nothing changes.
    """
    part, tokens = memory.fragment, np.full(blocks, layout.block_tokens, dtype=np.int32)
    starts = np.arange(blocks, dtype=np.int64) * layout.block_tokens
    memory.check(layout.check(part), starts, tokens)
    if layout.coding is None:
        return
    slots = np.arange(blocks, dtype=np.int64) * layout.slot_bytes
    arena = np.zeros(blocks * layout.slot_bytes, dtype=np.uint8)
    where = strips.Blocks(slots + layout.head_bytes, slots + TABLE_OFFSET, tokens, starts)
    sides = (geometry(layout), where, pages(memory, part), memory.block_table)
    strips.gather(arena, *sides, *span(part))
    good = strips.scatter(arena, *sides, *span(part))
    assert good.all(), "what was just hashed differs"
