"""Blocks on their way from one tier of a node to another: what stands for them before and after.

Whoever moves the bytes calls the first of a pair before and the second after; in between both slots
are held, and the block may have been dropped. To SSD and from there a block is copied: its other
slot stays. From HBM it moves: once it is in DRAM it is there no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.layout import SlotLayout

if TYPE_CHECKING:
    from kvstore.node.blocks import Blocks


class Between:
    """The moves between the tiers of one node's blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        # Of slots in HBM that their blocks have left and somebody still holds: where those are now.
        self._below: dict[Slot, Slot] = {}

    def begin_write(self, slot: Slot, layout: SlotLayout) -> Slot:
        """A slot on SSD for a copy of a sealed block in DRAM, or `Overloaded`."""
        blocks = self._blocks
        assert slot.state is State.SEALED and slot.lowest is Tier.DRAM
        target = blocks.take_on_ssd(slot, layout)
        target.move(State.FILLING)
        _copy_words(slot, target)
        slot.moves += 1
        target.moves += 1
        return target

    def end_write(self, slot: Slot, target: Slot, *, stored: bool) -> bool:
        """The copy is durable, or never will be. Whether the block now has it."""
        blocks = self._blocks
        slot.moves -= 1
        target.moves -= 1
        whole = stored and blocks.index.held(slot.key) is slot
        if whole:
            target.move(State.SEALED)
            slot.twin, target.twin = target, slot
            blocks.copied.add(slot)
            blocks.index.moved(slot)
        else:
            if stored:
                blocks.unsaid.add((target.key, target.offset))
            blocks.doom(target)
            blocks.settle(target)
        blocks.settle(slot)
        return whole

    def begin_read(
        self, slots: Sequence[Slot], layout: SlotLayout, spared: Collection[bytes]
    ) -> list[Slot]:
        """Slots in DRAM for blocks that are not there, of one owner and tenant: for the first of
        them, as many as there is room for. Others are spared."""
        if not slots:
            return []
        for slot in slots:  # before room is made: none of them is to go for another
            assert slot.tier is not Tier.DRAM and slot.twin is None and slot.state is State.SEALED
            slot.moves += 1
        owner, tenant = slots[0].owner, slots[0].tenant
        wanted = [(slot.key, slot.parent, slot.tokens) for slot in slots]
        origins = [slot.origin for slot in slots]
        targets = self._blocks.fill_first(owner, layout, wanted, tenant, spared, origins)
        for target in targets:
            target.moves += 1
        for slot in (left := slots[len(targets) :]):
            slot.moves -= 1
        self._blocks.settle_all(left)
        return targets

    def end_read(self, slot: Slot, target: Slot, miss: Miss | None) -> bool:
        """The bytes are in DRAM and verified, or why they cannot be had. Whether they may be read.

        The target stays held for its reader, who calls `Blocks.let_go`.
        """
        blocks = self._blocks
        slot.moves -= 1
        wanted = blocks.index.held(slot.key) is slot
        if wanted and miss is None:
            target.root = slot.root
            if slot.tier is Tier.HBM and slot.held:  # whoever holds the block holds it here too
                target.moves += 1
                self._below[slot] = target
            blocks.stand_in(slot, target)
        else:
            blocks.doom(target)
            if wanted and miss is not None:
                blocks.lose(slot, miss)
        blocks.settle(slot)
        return wanted and miss is None

    def let_go_above(self, slots: Sequence[Slot]) -> None:
        """Nobody holds these slots in HBM any more, nor, for that, where their blocks are now."""
        for slot in slots:
            if (target := self._below.pop(slot, None)) is not None:
                self._blocks.let_go(target)


def _copy_words(source: Slot, target: Slot) -> None:
    target.key, target.parent, target.tenant = source.key, source.parent, source.tenant
    target.tokens, target.origin, target.root = source.tokens, source.origin, source.root
