"""Room in one of two tiers, for blocks that are in the other one too."""

from __future__ import annotations

import pytest

from kvstore.block import Chain
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place
from kvstore.node.store import Store
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, Known, Rig, prompt


class TwoTiers(Rig):
    """A rig of so many slabs in each tier, of which the test itself moves the blocks."""

    def __init__(self, dram: int, ssd: int) -> None:
        super().__init__(slabs=dram)
        self.ssd = Slabs(ssd * SLAB, SLAB, Tier.SSD)
        self.blocks = Blocks(self.arena, SLAB, self.counters, self.ssd)
        self.store = Store(self.blocks, self.handles, self.clock, Known(), self.counters)
        self.writing = self.session()

    def put_on_ssd(self, place: Place, blocks: Chain) -> list[Slot]:
        """Put them, and have a copy of each on SSD."""
        slots = self.put(self.writing, place, blocks)
        for slot in slots:
            target = self.blocks.between.begin_write(slot, place.layout)
            assert self.blocks.between.end_write(slot, target, stored=True)
        self.store.check()
        return slots


def test_a_slab_on_ssd_stays_while_a_reader_has_one_of_its_blocks_open_in_dram() -> None:
    rig = TwoTiers(dram=4, ssd=1)
    small = [prompt(SMALL, TOKENS, start=100 * number) for number in range(4)]
    for one in small:
        rig.put_on_ssd(SMALL, one)
    opened = rig.pinned(rig.writing, small[1].hashes[0])
    with pytest.raises(Overloaded):
        rig.put_on_ssd(LARGE, prompt(LARGE, TOKENS))
    assert [rig.hits(SMALL, one) for one in small] == [1] * 4
    rig.store.readers.unpin(rig.writing, [opened.handle])
    rig.put_on_ssd(LARGE, prompt(LARGE, TOKENS, start=500))
    assert [rig.hits(SMALL, one) for one in small] == [0] * 4
