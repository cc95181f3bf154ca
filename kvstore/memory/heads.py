"""Slot heads in the arena: what the node writes there and anybody who maps it may read.

The generation is renewed before the memory changes hands, so a reader that finds it unchanged after
its copy has read one block's bytes only. See `kvstore.layout` for the offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Slot, State
from kvstore.layout import (
    GENERATION_OFFSET,
    HEAD,
    IDENTITY_OFFSET,
    ROOT_OFFSET,
    SLOT_MAGIC,
    STATE_OFFSET,
    TABLE_OFFSET,
    Fragment,
    SlotLayout,
)
from kvstore.limits import HASH_BYTES, ROOT_BYTES, MiB
from kvstore.memory.order import fence

_NO_HASH, _HASH = bytes(HASH_BYTES), np.dtype(f"V{HASH_BYTES}")
# `layout.HEAD`, for many at once.
_HEAD = np.dtype(
    [
        *(("magic", "<u8"), ("generation", "<u8"), ("state", "<u4"), ("align", "V12")),
        *(("root", f"V{ROOT_BYTES}"), ("unused", "<u8", 2), ("key", _HASH), ("namespace", _HASH)),
        *(("group", "<u4"), ("tokens", "<u4"), ("origin", "<u8"), ("parent", _HASH)),
        *(("tenant", "V16"), ("room", "V64")),
    ]
)
assert _HEAD.itemsize == HEAD.size
_MANY = 8  # slots that are sooner marked by columns than one by one
# Of strip tables that are gone through at once, which copies them: one call may name a GiB of them.
_TABLES_BYTES = 1 * MiB


class Heads:
    """Writes and reads the heads of slots in one arena."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        whole = len(view) // 8 * 8
        self._words = np.frombuffer(view[:whole], np.uint64)
        self._halves = self._words.view(np.uint32)

    def fill(self, slot: Slot, layout: SlotLayout) -> None:
        self.fill_all([slot], layout)

    def fill_all(self, slots: Sequence[Slot], layout: SlotLayout) -> None:
        """New FILLING blocks of one owner and tenant: the identity of each, no root, and a table of
        unwritten strips."""
        for some in _few(slots, layout):
            self._fill(some, layout)

    def _fill(self, slots: Sequence[Slot], layout: SlotLayout) -> None:
        at = np.array([slot.offset for slot in slots], np.int64)
        generations = np.array([slot.generation for slot in slots], np.uint64)
        # The generation and state first: a reader of the old block must notice before bytes change.
        self._words[(at + GENERATION_OFFSET) // 8] = generations
        self._halves[(at + STATE_OFFSET) // 4] = State.FILLING
        fence()
        heads = np.zeros(len(slots), _HEAD)
        heads["magic"], heads["generation"] = SLOT_MAGIC, generations
        heads["state"] = State.FILLING
        heads["key"] = np.frombuffer(b"".join([slot.key for slot in slots]), _HASH)
        parents = b"".join([slot.parent or _NO_HASH for slot in slots])
        heads["parent"] = np.frombuffer(parents, _HASH)
        heads["tokens"] = [slot.tokens for slot in slots]
        heads["namespace"], heads["group"] = np.void(slots[0].owner[0]), slots[0].owner[1]
        heads["origin"] = [slot.origin for slot in slots]
        heads["tenant"] = np.void(tenant_digest(slots[0].tenant))
        words = heads.view(np.uint64).reshape(len(slots), -1)
        first = at[:, None] // 8
        self._words[first + np.arange(words.shape[1])] = words
        self._words[first + np.arange(layout.strips) + TABLE_OFFSET // 8] = 0

    def mark(self, slot: Slot) -> None:
        """Publish the slot's state and generation as they now are, each in one store: readers look
        at any time, and `struct` has zeros there before it writes."""
        self._words[(slot.offset + GENERATION_OFFSET) // 8] = slot.generation
        self._halves[(slot.offset + STATE_OFFSET) // 4] = slot.state

    def mark_all(self, slots: Sequence[Slot]) -> None:
        """The same of each of these, its generation first: by that readers notice."""
        if len(slots) < _MANY:
            for slot in slots:
                self.mark(slot)
            return
        at = np.array([slot.offset for slot in slots], np.int64)
        self._words[(at + GENERATION_OFFSET) // 8] = [slot.generation for slot in slots]
        self._halves[(at + STATE_OFFSET) // 4] = [slot.state for slot in slots]

    def seal(self, slot: Slot) -> None:
        self.seal_all([slot])

    def seal_all(self, slots: Sequence[Slot]) -> None:
        """Publish the roots of SEALED slots, then that state."""
        at = np.array([slot.offset for slot in slots], np.int64)
        roots = np.frombuffer(b"".join([slot.root for slot in slots]), np.uint64).reshape(-1, 2)
        self._words[(at[:, None] + ROOT_OFFSET) // 8 + np.arange(2)] = roots
        self._halves[(at + STATE_OFFSET) // 4] = State.SEALED

    def root(self, slot: Slot, layout: SlotLayout) -> bytes:
        """xxh3-128 over identity and strip table, as they stand in memory now."""
        return self.roots([slot], layout)[0]

    def take_roots(self, slots: Sequence[Slot], layout: SlotLayout) -> None:
        """Each of these slots has its root from now on; `seal_all` publishes it."""
        for slot, root in zip(slots, self.roots(slots, layout), strict=True):
            slot.root = root

    def roots(self, slots: Sequence[Slot], layout: SlotLayout) -> list[bytes]:
        """The same of each of these."""
        size, found = layout.root_bytes, list[bytes]()
        words = np.arange(size // 8)
        for some in _few(slots, layout):
            at = np.array([slot.offset for slot in some], np.int64)
            # Copied at once: one after the other each would wait for memory by itself.
            said = self._words[(at[:, None] + IDENTITY_OFFSET) // 8 + words].tobytes()
            found += [xxhash.xxh3_128_digest(said[i : i + size]) for i in range(0, len(said), size)]
        return found

    def unwritten(self, slot: Slot, layout: SlotLayout, fragment: Fragment) -> Fragment | None:
        """The first strip of the fragment that is not written, as a fragment."""
        found = self.first_unwritten([slot], layout, fragment)
        return None if found is None else found[1]

    def first_unwritten(
        self, slots: Sequence[Slot], layout: SlotLayout, fragment: Fragment
    ) -> tuple[int, Fragment] | None:
        """The first of these slots in which a strip of the fragment is not written, and that."""
        before = 0
        for tables in self._tables(slots, layout, fragment):
            if not tables.all():
                place = int((tables == 0).any(axis=1).argmax())
                return before + place, _first(tables[place] == 0, fragment)
            before += len(tables)
        return None

    def layers_written(
        self, slots: Sequence[Slot], layout: SlotLayout, fragment: Fragment
    ) -> list[int]:
        """For each of these slots, how many leading layers of the fragment are written."""
        counts: list[int] = []
        for tables in self._tables(slots, layout, fragment):
            missing = tables == 0
            first = missing.argmax(axis=1)  # 0, too, where none is missing
            whole = ~missing[np.arange(len(missing)), first]
            counts += np.where(whole, fragment.layers, first // fragment.heads).tolist()
        return counts

    def none_written(self, slots: Sequence[Slot], layout: SlotLayout, fragment: Fragment) -> bool:
        """Whether no strip of the fragment is written in any of these slots."""
        return not any(tables.any() for tables in self._tables(slots, layout, fragment))

    def written(self, slot: Slot, layout: SlotLayout, fragment: Fragment) -> Fragment | None:
        """The first strip of the fragment that is written already, as a fragment."""
        table = self._table(slot, layout, fragment)
        return _first(table != 0, fragment) if table.any() else None

    def strip_hashes(self, slot: Slot, strips: range) -> list[int]:
        at = slot.offset + TABLE_OFFSET
        found = struct.unpack_from(f"<{len(strips)}Q", self._view, at + 8 * strips.start)
        return list(found)

    def set_strip_hashes(self, slot: Slot, entries: Iterable[tuple[int, int]]) -> None:
        """Of strips, by number."""
        table = (slot.offset + TABLE_OFFSET) // 8
        for strip, entry in entries:
            self._words[table + strip] = entry  # all of it at once

    def check(self, slot: Slot) -> None:
        """What stands in memory is what the node believes of a slot in use."""
        head = HEAD.unpack_from(self._view, slot.offset)
        root = slot.root or bytes(ROOT_BYTES)
        parent, tenant = slot.parent or bytes(HASH_BYTES), tenant_digest(slot.tenant)
        said = (slot.key, *slot.owner, slot.tokens, slot.origin, parent, tenant)
        assert head == (SLOT_MAGIC, slot.generation, slot.state, root, 0, 0, *said), (
            f"the head of slot {slot.number} differs"
        )

    def _tables(
        self, slots: Sequence[Slot], layout: SlotLayout, fragment: Fragment
    ) -> Iterator[npt.NDArray[np.uint64]]:
        """(slots, strips of the fragment): their entries of the strip tables, as they stand now; of
        a few slots at a time, in order."""
        numbers = np.arange(layout.strips).reshape(layout.layers, layout.kv_heads)
        layers = slice(fragment.layer_first, fragment.layer_first + fragment.layers)
        heads = slice(fragment.head_first, fragment.head_first + fragment.heads)
        strips = numbers[layers, heads].ravel()
        for some in _few(slots, layout):
            at = np.array([slot.offset for slot in some], np.int64)
            yield self._words[(at[:, None] + TABLE_OFFSET) // 8 + strips]

    def _table(self, slot: Slot, layout: SlotLayout, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """(layers, heads) of the fragment: its entries of the strip table, as they stand now."""
        at = slot.offset + TABLE_OFFSET
        table = np.frombuffer(self._view, np.uint64, layout.strips, at)
        layers = slice(fragment.layer_first, fragment.layer_first + fragment.layers)
        heads = slice(fragment.head_first, fragment.head_first + fragment.heads)
        return table.reshape(layout.layers, layout.kv_heads)[layers, heads]


def _few(slots: Sequence[Slot], layout: SlotLayout) -> Iterator[Sequence[Slot]]:
    """All of them, in order, so many at a time that what their tables take stays small."""
    count = max(1, _TABLES_BYTES // layout.root_bytes)
    for first in range(0, len(slots), count):
        yield slots[first : first + count]


def _first(marked: npt.NDArray[np.bool_], fragment: Fragment) -> Fragment:
    layer, head = divmod(int(marked.argmax()), fragment.heads)
    return Fragment(fragment.layer_first + layer, 1, fragment.head_first + head, 1)
