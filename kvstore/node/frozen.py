"""A block as it lies on a disk: its slot's bytes, with a head bound to the place it was written to.

The head is stamped for its place and path, the root vouches for identity and strip table, and those
for every byte behind them. So a block that is torn, rotted or in another's place reads as damaged,
never as a block. One whose place another had when the node was killed, before its record went, was
evicted: no byte of it rotted. These calls block: they are made in threads.
"""

from __future__ import annotations

import mmap
import threading

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot
from kvstore.disk.head import identity, stamped, told, vouched
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.disk.volumes import Volumes
from kvstore.layout import IDENTITY_OFFSET, TABLE_OFFSET, SlotLayout
from kvstore.memory.strips import verified

_ZEROS = memoryview(mmap.mmap(-1, DISK_ALIGN)).toreadonly()


class Frozen:
    """Writes slots of one arena to the SSD tier, and reads them back."""

    def __init__(self, view: memoryview, volumes: Volumes) -> None:
        self._view, self._volumes = view, volumes
        self._own = threading.local()

    def write(self, source: Slot, target: Slot, layout: SlotLayout) -> bool:
        """Lay a sealed block onto the disk; False, and nothing is written, if it is damaged."""
        head = self._head(layout)
        head[:] = self._view[source.offset : source.offset + layout.head_bytes]
        if not vouched(head, source.root, layout):
            return False
        if not verified(self._view, head, source, layout):
            return False
        address = self._volumes.address(target.offset)
        head[:IDENTITY_OFFSET] = stamped(target.generation, source.root, address)
        self._volumes.write(target.offset, [head, self._payload(source, layout)])
        return True

    def read(self, source: Slot, target: Slot, layout: SlotLayout) -> Miss | None:
        """Fill a slot of the arena from the disk; or why what lies there is not the block.

        The target's head keeps its own first words: only the strip table is taken over.
        """
        head = self._head(layout)
        self._volumes.read(source.offset, head)
        if self.superseded(head, source):
            return Miss.EVICTED
        return None if self._filled(head, source, target, layout) else Miss.DAMAGED

    def peek(self, source: Slot, at: int, into: memoryview) -> None:
        """What lies in a slot from `at` on, unverified, into memory of the caller's own."""
        self._volumes.read(source.offset + at, into)

    def belongs(self, head: memoryview, slot: Slot, layout: SlotLayout) -> bool:
        """Whether a head from the disk is that of the block in this slot, unharmed and in its
        place. It may be whole, and not the block that a rotten record says."""
        address = self._volumes.address(slot.offset)
        if head[:IDENTITY_OFFSET] != stamped(slot.generation, slot.root, address):
            return False
        if head[IDENTITY_OFFSET:TABLE_OFFSET] != identity(slot):
            return False
        return vouched(head, slot.root, layout)

    def superseded(self, head: memoryview, slot: Slot) -> bool:
        """Whether a head from the disk is that of a later block than the one that an earlier run's
        record has in this slot."""
        there = told(head, self._volumes.address(slot.offset)) if slot.unproven else None
        return there is not None and there.generation > slot.generation

    def erase(self, slot: Slot) -> None:
        """Overwrite the beginning of a slot's head: what lies there is no block any more."""
        self._volumes.write(slot.offset, [_ZEROS])

    def _filled(self, head: memoryview, source: Slot, target: Slot, layout: SlotLayout) -> bool:
        if not self.belongs(head, source, layout):
            return False
        self._volumes.read(source.offset + layout.head_bytes, self._payload(target, layout))
        at, end = target.offset, TABLE_OFFSET + 8 * layout.strips
        self._view[at + TABLE_OFFSET : at + end] = head[TABLE_OFFSET:end]
        return verified(self._view, head, target, layout)

    def _head(self, layout: SlotLayout) -> memoryview:
        """Memory of this thread's own, as a disk wants it aligned."""
        if getattr(self._own, "size", 0) < layout.head_bytes:
            self._own.size = -(-layout.head_bytes // DISK_ALIGN) * DISK_ALIGN
            self._own.head = memoryview(mmap.mmap(-1, self._own.size))
        head: memoryview = self._own.head[: layout.head_bytes]
        return head

    def _payload(self, slot: Slot, layout: SlotLayout) -> memoryview:
        return self._view[slot.offset + layout.head_bytes : slot.offset + layout.slot_bytes]
