"""Slots of a tier that can go without a block being lost, in the order in which they do: least
worth first. In DRAM they are copies of what is on SSD too; in HBM all, which go down to DRAM.

What a block is worth is the index's to say (`kvstore.core.ranking`), and the same in each tier. One
that has left costs a move to have again, so a tier keeps those that will be wanted soonest, and a
block that was read once does not displace one that is read all day: see `bench placement` for what
that finds.

Of each kind the oldest and the youngest are compared, as `Ranking` does; here a block may go
before those behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from kvstore.core.index import Index
from kvstore.core.lifecycle import Owner, Slot
from kvstore.core.slabs import Slabs

Lane = OrderedDict[Slot, None]  # of one kind, least recently used first


class Lanes:
    """Slots of one tier, by owner and tenant, then by kind."""

    def __init__(self, index: Index, slabs: Slabs) -> None:
        self._index, self._slabs = index, slabs
        self._lanes: dict[tuple[Owner, str], dict[int, Lane]] = {}
        self._lane_of: dict[Slot, Lane] = {}
        self.bytes = 0  # of the places of all of them

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._lane_of

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._lane_of)

    def places(self) -> list[tuple[Owner, str]]:
        """Owners and tenants of whom there are or were slots."""
        return list(self._lanes)

    def add(self, slot: Slot) -> None:
        """The youngest of its kind."""
        lanes = self._lanes.setdefault((slot.owner, slot.tenant), {})
        lane = lanes.setdefault(self._index.kind(slot), OrderedDict())
        lane[slot] = None
        self._lane_of[slot] = lane
        self.bytes += self._slabs.slab_of(slot).slot_bytes

    def discard(self, slot: Slot) -> None:
        lane = self._lane_of.pop(slot, None)
        if lane is not None:
            del lane[slot]
            self.bytes -= self._slabs.slab_of(slot).slot_bytes

    def touch(self, slot: Slot) -> None:
        """A block that may be here was used: its kind may be another now."""
        if slot in self._lane_of:
            self.discard(slot)
            self.add(slot)

    def coldest(self, owner: Owner, tenant: str, spared: Collection[bytes]) -> Iterator[Slot]:
        """Those that nobody holds and that are not spared, as they go."""

        def free(slots: Iterable[Slot]) -> Iterator[Slot]:
            return (one for one in slots if not one.held and one.key not in spared)

        lanes = self._lanes.get((owner, tenant), {}).values()
        ends = [free(way) for lane in lanes for way in (lane, reversed(lane))]
        firsts = [self._next(end, ()) for end in ends]
        seen: set[Slot] = set()
        while least := min((one for one in firsts if one is not None), default=None):
            slot = least[-1]
            yield slot
            seen.add(slot)
            for place, one in enumerate(firsts):
                if one is not None and one[-1] is slot:
                    firsts[place] = self._next(ends[place], seen)

    def _next(
        self, end: Iterator[Slot], seen: Collection[Slot]
    ) -> tuple[float, int, int, Slot] | None:
        slot = next((one for one in end if one not in seen), None)
        return None if slot is None else (*self._index.worth(slot), slot.number, slot)
