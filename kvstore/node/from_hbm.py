"""A block copied from its slot in HBM to one in DRAM, and verified there before anybody reads it.

The GPU moves the bytes; the strip table is on the host already, with the slot's head.
"""

from __future__ import annotations

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot
from kvstore.layout import TABLE_OFFSET, SlotLayout
from kvstore.memory.heads import Heads
from kvstore.memory.strips import verified
from kvstore.transfer.lending import Copy


class FromHbm:
    """Reads blocks of one node. Calls block: they are made in threads."""

    def __init__(self, view: memoryview, heads: Heads, copy: Copy) -> None:
        self._view, self._heads, self._copy = view, heads, copy

    def read(self, source: Slot, target: Slot, layout: SlotLayout) -> Miss | None:
        """Fill a slot; or why it is not the block.

        The target's head keeps its own first words: only the strip table is taken over.
        """
        here, there, end = source.offset, target.offset, TABLE_OFFSET + 8 * layout.strips
        table = self._view[here + TABLE_OFFSET : here + end]
        self._view[there + TABLE_OFFSET : there + end] = table
        if self._heads.root(target, layout) != source.root:
            return Miss.DAMAGED
        first = layout.head_bytes
        self._copy(here + first, there + first, layout.payload_bytes)
        head = self._view[there : there + first]
        return None if verified(self._view, head, target, layout) else Miss.DAMAGED
