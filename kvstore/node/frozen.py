"""A block as it lies on a disk: its slot's bytes, with a head bound to the place it was written to.

The head carries the place and a hash of its own first words, the root vouches for identity and
strip table, and those for every byte behind them. So a block that is torn, rotted, stale or in
another's place reads as damaged, never as a block. These calls block: they are made in threads.
"""

from __future__ import annotations

import mmap
import struct
import threading

import xxhash

from kvstore.core.lifecycle import Slot, State
from kvstore.disk.protocol import DISK_ALIGN, Disk
from kvstore.layout import (
    HEAD,
    IDENTITY_OFFSET,
    PLACE_OFFSET,
    ROOT_OFFSET,
    SLOT_MAGIC,
    TABLE_OFFSET,
    SlotLayout,
)
from kvstore.limits import ROOT_BYTES
from kvstore.memory.strips import verified

_U64 = struct.Struct("<Q")
_BEGIN = struct.Struct("<QQI12x16sQ")  # the words that the head's own hash covers
_SEALED = int(State.SEALED)


class Frozen:
    """Writes slots of one arena to one disk, and reads them back."""

    def __init__(self, view: memoryview, disk: Disk) -> None:
        self._view, self._disk = view, disk
        self._own = threading.local()

    def write(self, source: Slot, target: Slot, layout: SlotLayout) -> bool:
        """Lay a sealed block onto the disk; False, and nothing is written, if it is damaged."""
        head = self._head(layout)
        head[:] = self._view[source.offset : source.offset + layout.head_bytes]
        if not self._vouched(head, source.root, layout):
            return False
        if not verified(self._view, head, source, layout):
            return False
        _BEGIN.pack_into(
            head, 0, SLOT_MAGIC, target.generation, _SEALED, source.root, target.offset
        )
        _U64.pack_into(head, PLACE_OFFSET + 8, _own_hash(head))
        file, offset = divmod(target.offset, self._disk.file_bytes)
        self._disk.write(file, offset, [head, self._payload(source, layout)])
        return True

    def read(self, source: Slot, target: Slot, layout: SlotLayout) -> bool:
        """Fill a slot of the arena from the disk; False if what lies there is not the block.

        The target's head keeps its own first words: only the strip table is taken over.
        """
        head = self._head(layout)
        file, offset = divmod(source.offset, self._disk.file_bytes)
        self._disk.read(file, offset, head)
        begin = (SLOT_MAGIC, source.generation, _SEALED, source.root, source.offset)
        if _BEGIN.unpack_from(head) != begin or not self._vouched(head, source.root, layout):
            return False
        if _U64.unpack_from(head, PLACE_OFFSET + 8)[0] != _own_hash(head):
            return False
        at = target.offset
        if (
            head[IDENTITY_OFFSET:TABLE_OFFSET]
            != self._view[at + IDENTITY_OFFSET : at + TABLE_OFFSET]
        ):
            return False  # whole, but not the block that is looked for
        self._disk.read(file, offset + layout.head_bytes, self._payload(target, layout))
        end = TABLE_OFFSET + 8 * layout.strips
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

    def _vouched(self, head: memoryview, root: bytes, layout: SlotLayout) -> bool:
        identity = head[IDENTITY_OFFSET : IDENTITY_OFFSET + layout.root_bytes]
        return xxhash.xxh3_128_digest(identity) == root


def _own_hash(head: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(head[: _BEGIN.size])


assert _BEGIN.size == PLACE_OFFSET + 8 and ROOT_OFFSET + ROOT_BYTES == PLACE_OFFSET
assert HEAD.size == TABLE_OFFSET
