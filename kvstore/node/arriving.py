"""Blocks on their way to a node from others: slots of their own until each has come, or never will.

Whoever brings them calls `begin` before and `end` after; in between nobody else takes the slots,
and a block may have been given up: what is removed or purged meanwhile does not come back by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from kvstore.core.lifecycle import Owner, Slot, State
from kvstore.layout import SlotLayout

if TYPE_CHECKING:
    from kvstore.node.blocks import Blocks


class Arriving:
    """What comes to one node, fetched or followed."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._slots: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._slots

    def begin(
        self,
        owner: Owner,
        layout: SlotLayout,
        wanted: Sequence[tuple[bytes, bytes, int]],
        tenant: str,
        spared: Collection[bytes],
        origins: Sequence[int],
    ) -> list[Slot]:
        """Held slots in DRAM for (key, parent, tokens) triples: for the first of them, as many as
        there is room for."""
        slots = self._blocks.fill_first(owner, layout, wanted, tenant, spared, origins)
        for slot in slots:
            slot.moves += 1
        self._slots.update(slots)
        return slots

    def end(self, slots: Sequence[Slot], layout: SlotLayout, *, whole: bool) -> None:
        """All of these blocks are here and proven, or they will not come."""
        self._slots.difference_update(slots)
        filling = [slot for slot in slots if slot.state is State.FILLING]
        if whole:
            self._blocks.seal_all(filling, layout)
        else:
            for slot in filling:
                self._blocks.doom(slot)
        for slot in slots:
            slot.moves -= 1
        self._blocks.settle_all(slots)

    def give_up(self, covers: Callable[[Slot], bool]) -> None:
        """Of what still comes, nothing that this covers is to be a block here."""
        for slot in self._slots:
            if slot.state is State.FILLING and covers(slot):
                self._blocks.doom(slot)
