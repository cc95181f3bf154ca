"""A slot's payload as a dense run of bytes, for callers that stream it instead of mapping it.

Dense means slot order without the gaps a short block leaves at the end of each strip. Every strip
is hashed as it is written and compared as it is read; a caller is never given one that differs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import xxhash

from kvstore.core.lifecycle import Slot
from kvstore.layout import TABLE_OFFSET, Fragment, SlotLayout
from kvstore.limits import PUT_CHUNK_BYTES_MAX
from kvstore.memory.heads import Heads
from kvstore.memory.order import fence


def strip_hash(strip: memoryview) -> int:
    """xxh3-64, with 0 kept as 1: in a strip table 0 means not written."""
    return xxhash.xxh3_64_intdigest(strip) or 1


def spans(slot: Slot, layout: SlotLayout, fragment: Fragment) -> Iterator[tuple[int, int, int]]:
    """(strip, offset in the arena, bytes) of each strip of a fragment, in slot order."""
    size = layout.strip_bytes(slot.tokens)
    payload = slot.offset + layout.head_bytes
    for layer in range(fragment.layer_first, fragment.layer_first + fragment.layers):
        first = layer * layout.kv_heads + fragment.head_first
        for strip in range(first, first + fragment.heads):
            yield strip, payload + strip * layout.strip_stride, size


class StripWriter:
    """Takes a fragment's dense bytes in pieces of any size and lays them into a slot."""

    def __init__(
        self, view: memoryview, heads: Heads, slot: Slot, layout: SlotLayout, fragment: Fragment
    ) -> None:
        self._view, self._heads, self._slot = view, heads, slot
        self._spans = spans(slot, layout, fragment)
        self._strip, self._at, self._size = next(self._spans)
        self._filled = 0
        self.missing = fragment.layers * fragment.heads * self._size

    def write(self, data: bytes) -> None:
        """Lay in the next bytes. The caller has checked that no more come than are missing."""
        assert len(data) <= self.missing, "more bytes than the fragment holds"
        self.missing -= len(data)
        rest, whole = memoryview(data), list[tuple[int, int]]()
        while rest:
            count = min(len(rest), self._size - self._filled)
            start = self._at + self._filled
            self._view[start : start + count] = rest[:count]
            rest = rest[count:]
            self._filled += count
            if self._filled == self._size:
                entry = strip_hash(self._view[self._at : self._at + self._size])
                whole.append((self._strip, entry))
                self._strip, self._at, self._size = next(self._spans, (0, 0, 0))
                self._filled = 0
        if whole:
            fence()  # whoever sees an entry may read the strip
            self._heads.set_strip_hashes(self._slot, whole)


def intact(view: memoryview, heads: Heads, slot: Slot, layout: SlotLayout) -> bool:
    """Whether every byte of a sealed slot is still what its writer sealed."""
    head = view[slot.offset : slot.offset + layout.head_bytes]
    return heads.root(slot, layout) == slot.root and verified(view, head, slot, layout)


def verified(view: memoryview, head: memoryview, slot: Slot, layout: SlotLayout) -> bool:
    """Whether every strip of a slot has the hash that a head's strip table gives it."""
    hashes = struct.unpack_from(f"<{layout.strips}Q", head, TABLE_OFFSET)
    return all(
        strip_hash(view[at : at + size]) == hashes[strip]
        for strip, at, size in spans(slot, layout, layout.whole)
    )


class Damaged(Exception):
    """A strip no longer had its hash when it was about to be sent."""


def chunks(
    view: memoryview, heads: Heads, slot: Slot, layout: SlotLayout, fragment: Fragment
) -> Iterator[bytes]:
    """A fragment's dense bytes in pieces that a message can carry.

    Strips are copied, then verified, then given out; `Damaged` ends the run before a wrong byte. Of
    a strip that takes several pieces no copy is kept: see `_long_strip`.
    """
    size = layout.strip_bytes(slot.tokens)
    if size > PUT_CHUNK_BYTES_MAX:
        for strip, at, _ in spans(slot, layout, fragment):
            (wanted,) = heads.strip_hashes(slot, range(strip, strip + 1))
            yield from _long_strip(view[at : at + size], wanted)
        return
    pending, most = list[bytes](), PUT_CHUNK_BYTES_MAX // size
    room = most
    for first, count in _runs(layout, fragment):
        while count:
            some = min(count, room)
            pending.append(_copied(view, heads, slot, layout, range(first, first + some)))
            first, count, room = first + some, count - some, room - some
            if not room:
                yield b"".join(pending)
                pending, room = [], most
    if pending:
        yield b"".join(pending)


def _runs(layout: SlotLayout, fragment: Fragment) -> Iterator[tuple[int, int]]:
    """The first strip, and how many, of each run that lies in one piece, in slot order."""
    if fragment.heads == layout.kv_heads:
        yield fragment.layer_first * layout.kv_heads, fragment.layers * layout.kv_heads
        return
    for layer in range(fragment.layer_first, fragment.layer_first + fragment.layers):
        yield layer * layout.kv_heads + fragment.head_first, fragment.heads


def _copied(view: memoryview, heads: Heads, slot: Slot, layout: SlotLayout, strips: range) -> bytes:
    """A copy of strips that lie side by side, without the gaps between them."""
    size, stride = layout.strip_bytes(slot.tokens), layout.strip_stride
    wanted = heads.strip_hashes(slot, strips)
    at = slot.offset + layout.head_bytes + strips.start * stride
    lying = np.frombuffer(view[at : at + len(strips) * stride], np.uint8)
    data = lying.reshape(len(strips), stride)[:, :size].tobytes()
    copy = memoryview(data)
    if [strip_hash(copy[i : i + size]) for i in range(0, len(copy), size)] != wanted:
        raise Damaged
    return data


def _long_strip(strip: memoryview, wanted: int) -> Iterator[bytes]:
    """Verified where it lies, then copied and hashed piece by piece as the caller takes them.

    The last piece is given out only if all that were had the strip's hash: should the memory be
    damaged in between, the strip stays incomplete.
    """
    if strip_hash(strip) != wanted:
        raise Damaged
    given = xxhash.xxh3_64()
    for start in range(0, len(strip), PUT_CHUNK_BYTES_MAX):
        piece = bytes(strip[start : start + PUT_CHUNK_BYTES_MAX])
        given.update(piece)
        if start + len(piece) == len(strip) and (given.intdigest() or 1) != wanted:
            raise Damaged
        yield piece
