"""What holds a block while it moves from one tier of a node to another."""

from __future__ import annotations

from kvstore.core.lifecycle import Tier
from kvstore.node.readers import Opened
from tests.node.lender import Lender, lent


def test_what_somebody_holds_stays_where_it_was_brought_for_another() -> None:
    """A scheduler holds it, a reader that does not reach HBM has it brought down, puts come."""

    async def story(rig: Lender) -> None:
        rig.put_some(1)
        keys = rig.keys(1)
        held = rig.opened(keys, Tier.HBM)
        async with rig.hbm.brought(keys):
            assert rig.tiers(keys) == [Tier.DRAM] * 4
        for number in range(2, 5):
            rig.put_some(number, reach=Tier.DRAM)  # of others, in all the room that is left
        assert rig.tiers(keys) == [Tier.DRAM] * 4
        handles = [one.handle for one in held if isinstance(one, Opened)]
        rig.store.readers.unpin(rig.writing, handles)
        rig.put_some(5, reach=Tier.DRAM)
        assert rig.tiers(keys) == [None] * 4

    lent(story, serve=False, slabs=2)
