"""The arena as devices of this process reach it: blocks go between HBM and their slots in one copy.

A device that is not yet told of the arena is told when the first block wants to go there; until it
knows the slots, blocks are staged (`kvstore.transfer.staged`), as they are where what lies together
in a slot is so small that asking for each copy takes longer than copying twice.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from kvstore.kernels.pieces import Places
from kvstore.kernels.strips import Blocks
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import KiB
from kvstore.memory.arena import Arena
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.near import of_device
from kvstore.transfer.protocol import Mask, Memory

RUN_BYTES_MIN = 128 * KiB  # a copy is asked for in the time in which a bus moves about so much


class Reached:
    """One writable mapping of an arena. Safe to use from several threads."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}  # by device: `kernels.gpu.registered.Registered`
        self._closed = False

    def takes(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> Mask:
        """Which of these blocks can go this way now."""
        places = self._places(layout, blocks, fragment)
        none = np.zeros(len(blocks.tokens), bool)
        if not len(none) or _run_bytes(layout, fragment) < RUN_BYTES_MIN:
            return none
        if not memory.staging.straight.takes(places, pages(memory, fragment)):
            return none
        firsts = blocks.payload_offsets
        known = self._registered(memory.staging.device)
        if known is None:
            return none
        found: Mask = known.covers(firsts, firsts + layout.payload_bytes)
        return found

    def store(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> None:
        """HBM -> slots, as `Transport.store`."""
        places = self._places(layout, blocks, fragment)
        memory.staging.straight.gathered(places, pages(memory, fragment), memory.block_table)

    def load(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> Mask:
        """Slots -> HBM, as `Transport.load` of blocks whose tables are vouched for."""
        places = self._places(layout, blocks, fragment)
        table = memory.block_table
        good: Mask = memory.staging.straight.scattered(places, pages(memory, fragment), table)
        return good

    def close(self) -> None:
        """Devices know the arena no more; for when nothing moves, before it is unmapped."""
        with self._lock:
            self._closed, known, self._known = True, [*self._known.values()], {}
        for one in known:
            one.end()

    def _places(self, layout: SlotLayout, blocks: Blocks, fragment: Fragment) -> Places:
        return Places(self._arena.bytes, geometry(layout), span(fragment), blocks)

    def _registered(self, device: Any) -> Any:
        from kvstore.kernels.gpu.registered import Registered  # late: torch, where there is HBM

        with self._lock:
            if not self._closed and str(device) not in self._known:
                memory = self._arena.bytes[: self._arena.size]
                near = self._arena.spread.on(of_device(device))
                self._known[str(device)] = Registered(memory, device, near=near)
            return self._known.get(str(device))


def _run_bytes(layout: SlotLayout, fragment: Fragment) -> int:
    """What of a full block's fragment lies together."""
    whole = fragment.heads == layout.kv_heads
    return layout.strip_stride * fragment.heads * (fragment.layers if whole else 1)
