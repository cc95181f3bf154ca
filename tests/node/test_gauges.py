"""What is told of a node is what it has by the time that somebody asks."""

from __future__ import annotations

from kvstore.core.lifecycle import Tier
from kvstore.core.slabs import Slabs
from kvstore.node.gauges import look_up
from tests.node.rig import SLAB, Rig


def test_what_a_tier_has_room_for_is_less_by_what_was_retired_of_it() -> None:
    rig, ssd = Rig(slabs=4), Slabs(8 * SLAB, SLAB, Tier.SSD)
    slabs = {"dram": rig.blocks.slabs, "ssd": ssd}
    look_up(rig.counters, rig.store, rig.sessions, slabs)
    assert rig.counters.values("tier_capacity_bytes") == {"dram": 4 * SLAB, "ssd": 8 * SLAB}
    used = ssd.take((b"n", 0), SLAB)
    ssd.retire(0, 2 * SLAB)  # a file of a disk that fails
    assert rig.counters.values("tier_capacity_bytes")["ssd"] == 7 * SLAB
    assert used is not None
    ssd.give_all([used])
    assert rig.counters.values("tier_capacity_bytes") == {"dram": 4 * SLAB, "ssd": 6 * SLAB}
    assert rig.counters.values("tier_bytes") == {"dram": 0.0, "ssd": 0.0}
