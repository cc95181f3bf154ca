"""Slabs that a tenant uses less, whole, than anything of the owner that wants room.

What is worth least is spread over slabs, and most slabs hold something that is used. To go through
all that goes before an owner's blocks, each time it wants room, takes milliseconds; so a few slabs
are looked at each time, in turns, and of each the block that kept it the last time first.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.slabs import Slab, Slabs

LOOKED_MAX = 8  # slabs, each time


class LessUsed:
    """Whose turn it is, in each tier."""

    def __init__(self, index: Index, copied: Lanes) -> None:
        """`copied`: slots in DRAM of blocks that are on SSD too, which go before others."""
        self._index, self._copied = index, copied
        self._turn: dict[Tier, int] = {}
        self._kept_by: dict[tuple[Tier, int], Slot] = {}  # a slab, when it was looked at last

    def next(self, slabs: Slabs, owner: Owner) -> list[Slab]:
        """Those of other owners among the slabs whose turn it is."""
        turn = self._turn.get(slabs.tier, 0)
        self._turn[slabs.tier] = turn + LOOKED_MAX
        some = slabs.round(turn, LOOKED_MAX)
        return [one for one in some if one.owner not in (None, owner) and not one.retired]

    def of(self, slabs: Slabs, some: list[Slab], first: Slot) -> Iterator[Slab]:
        """Of some slabs those in which all is the tenant's, may go, and goes before `first`, which
        would go first of the owner's own. On SSD what sleeps in them has not been used since the
        node started, and is woken where it goes."""
        bar, wakes = self.rank(first), slabs.tier is Tier.SSD and not self._index.unused(first)

        def goes(one: Slot) -> bool:
            return one.tenant == first.tenant and may_go(one) and self.rank(one) < bar

        for slab in some:
            place = (slabs.tier, slab.number)
            kept_by = self._kept_by.pop(place, None)
            if kept_by is None or kept_by.state is State.EMPTY or goes(kept_by):
                kept_by = next((one for one in slab.slots.values() if not goes(one)), None)
            if kept_by is None and not slab.awake and wakes:
                self._index.rouse_places(slab.offset, slab.offset + slabs.slab_bytes)
                kept_by = next((one for one in slab.slots.values() if not goes(one)), None)
            if kept_by is not None:
                self._kept_by[place] = kept_by
            elif slab.awake:
                yield slab

    def rank(self, slot: Slot) -> tuple[bool, float, int]:
        """The least goes first."""
        return (slot not in self._copied, *self._index.worth(slot))


def may_go(slot: Slot) -> bool:
    """With its place on SSD a block leaves DRAM too, where readers hold it."""
    above = slot.twin if slot.tier is Tier.SSD else None
    return slot.state is State.SEALED and not (slot.held or (above is not None and above.held))
