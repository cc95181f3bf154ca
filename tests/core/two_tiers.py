"""A rig of DRAM and SSD without a disk: the test itself moves the blocks."""

from __future__ import annotations

from kvstore.block import Chain
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place
from kvstore.node.store import Store
from tests.node.rig import SLAB, SMALL, Known, Rig


class TwoTiers(Rig):
    """Of so many slabs in each tier."""

    def __init__(self, dram: int, ssd: int) -> None:
        super().__init__(slabs=dram)
        self.ssd = Slabs(ssd * SLAB, SLAB, Tier.SSD)
        self.blocks = Blocks(self.arena, SLAB, self.counters, self.ssd)
        self.store = Store(self.blocks, self.handles, self.clock, Known(), self.counters)
        self.writing = self.session()

    def put_on_ssd(self, place: Place, blocks: Chain, first: int = 0) -> list[Slot]:
        """Put them, and have a copy of each on SSD."""
        slots = self.put(self.writing, place, blocks, first)
        for slot in slots:
            target = self.blocks.between.begin_write(slot, place.layout)
            assert self.blocks.between.end_write(slot, target, stored=True)
        self.store.check()
        return slots

    def compute_again(self, blocks: Chain) -> None:
        """The first block of a prompt cannot be read any more, in any tier; then it is put anew."""
        (key,) = self.store.keys("default", SMALL, blocks.hashes[:1])
        while (slot := self.blocks.index.held(key)) is not None:
            self.blocks.damaged(slot)
        self.put(self.writing, SMALL, blocks, 0, 1)
