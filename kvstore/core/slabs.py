"""An arena cut into slabs; a slab holds equal slots of one owner. An empty slab may change owner.

Pure bookkeeping: which slots exist, which are free. It never touches memory and never evicts; the
caller empties slots first when `take` finds none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.errors import Invalid


@dataclass(eq=False, slots=True)
class Slab:
    """One run of the arena and the slots cut from it."""

    number: int
    offset: int
    slots: list[Slot] = field(default_factory=list)
    slot_bytes: int = 0
    used: int = 0


class Slabs:
    """Free and used slots of one arena."""

    def __init__(
        self, arena_bytes: int, slab_bytes: int, tier: Tier = Tier.DRAM, generation: int = 0
    ) -> None:
        if slab_bytes < 1 or arena_bytes < slab_bytes:
            raise Invalid(f"an arena of {arena_bytes} bytes holds no slab of {slab_bytes} bytes")
        self.slab_bytes, self.tier = slab_bytes, tier
        self._slabs = [Slab(i, i * slab_bytes) for i in range(arena_bytes // slab_bytes)]
        self._empty = self._slabs[::-1]  # the lowest is taken first
        self._free: dict[Owner, list[Slot]] = {}
        self._slab_of: dict[int, Slab] = {}  # slot number -> slab
        self._next_number = 0
        self._generation = generation  # the last that was given out

    def take(self, owner: Owner, slot_bytes: int) -> Slot | None:
        """A free slot of the owner's, of a newly cut slab if need be; None when there is none."""
        self._check_fits(slot_bytes)
        free = self._free.setdefault(owner, [])
        if not free:
            if not self._empty:
                return None
            self._cut(self._empty.pop(), owner, slot_bytes)
        slot = free.pop()
        self._slab_of[slot.number].used += 1
        slot.generation = self._renewed()
        return slot

    def restore(self, owner: Owner, slot_bytes: int, offset: int, generation: int) -> Slot | None:
        """The slot that a record from before a restart names; None if it cannot be what it says.

        Call `settled` after the last one: until then no slot can be taken.
        """
        if offset < 0 or offset + slot_bytes > self.capacity_bytes:
            return None
        slab = self._slabs[offset // self.slab_bytes]
        if not slab.slots:
            self._fit_out(slab, owner, slot_bytes)
        index, within = divmod(offset - slab.offset, slot_bytes)
        if within or slab.slot_bytes != slot_bytes or index >= len(slab.slots):
            return None
        slot = slab.slots[index]
        if slot.owner != owner or slot.generation:
            return None  # two records of one place: the disk lied about one of them
        slot.generation = generation
        slab.used += 1
        self._generation = max(self._generation, generation)
        return slot

    def settled(self) -> None:
        """Every record has been read: what none of them named is free."""
        self._empty = [slab for slab in self._slabs[::-1] if not slab.used]
        self._free = {}
        for slab in self._slabs:
            if not slab.used:
                for slot in slab.slots:
                    del self._slab_of[slot.number]
                slab.slots = []
            for slot in slab.slots:
                free = self._free.setdefault(slot.owner, [])
                if not slot.generation:
                    free.append(slot)

    def give(self, slot: Slot) -> None:
        """Take back an EMPTY slot; a slab whose last slot comes back may change owner."""
        assert slot.state is State.EMPTY, "only an empty slot is given back"
        slot.generation = self._renewed()
        slab = self._slab_of[slot.number]
        slab.used -= 1
        self._free[slot.owner].append(slot)
        if slab.used == 0:
            gone = {s.number for s in slab.slots}
            self._free[slot.owner] = [s for s in self._free[slot.owner] if s.number not in gone]
            for number in gone:
                del self._slab_of[number]
            slab.slots = []
            self._empty.append(slab)

    def at(self, offset: int) -> Slot | None:
        """The slot whose head stands at an offset of the arena."""
        if not 0 <= offset < self.capacity_bytes:
            return None
        slab = self._slabs[offset // self.slab_bytes]
        if not slab.slots:
            return None
        index, within = divmod(offset - slab.offset, slab.slot_bytes)
        # The end of a slab that no slot fills may have held a head when it was cut otherwise.
        return slab.slots[index] if not within and index < len(slab.slots) else None

    def room(self, owner: Owner, slot_bytes: int) -> int:
        """How many slots the owner can take as things stand."""
        self._check_fits(slot_bytes)
        return len(self._free.get(owner, ())) + len(self._empty) * self.slots_in_slab(slot_bytes)

    def slots_in_slab(self, slot_bytes: int) -> int:
        return self.slab_bytes // slot_bytes

    def occupied(self) -> list[Slab]:
        return [slab for slab in self._slabs if slab.slots]

    @property
    def empty_slabs(self) -> int:
        return len(self._empty)

    @property
    def capacity_bytes(self) -> int:
        return len(self._slabs) * self.slab_bytes

    def check(self) -> None:
        free = [slot.number for slots in self._free.values() for slot in slots]
        assert len(set(free)) == len(free), "a slot is free twice"
        for owner, slots in self._free.items():
            assert all(slot.owner == owner for slot in slots), "a free slot under another owner"
        empty = [slab.number for slab in self._empty]
        assert sorted(empty) == [s.number for s in self._slabs if not s.slots], "a slab is lost"
        seen = []
        for slab in self._slabs:
            numbers = [slot.number for slot in slab.slots]
            seen += numbers
            used = len(set(numbers) - set(free))
            assert slab.used == used, f"slab {slab.number} miscounts its used slots"
            assert used > 0 or not slab.slots, "a slab without used slots keeps its owner"
            assert len({slot.owner for slot in slab.slots}) <= 1, "a slab of two owners"
            for i, slot in enumerate(slab.slots):
                assert self._slab_of[slot.number] is slab, "a slot of another slab"
                assert slot.offset == slab.offset + i * slab.slot_bytes, "slots overlap"
                assert (i + 1) * slab.slot_bytes <= self.slab_bytes, "a slot beyond its slab"
                assert slot.generation <= self._generation, "a generation to be given out again"
        assert self._slab_of.keys() == set(seen), "slots of no slab"
        assert set(free) <= set(seen), "a free slot of no slab"

    def _check_fits(self, slot_bytes: int) -> None:
        if slot_bytes > self.slab_bytes:
            raise Invalid(
                f"a slot of {slot_bytes} bytes is larger than a slab of {self.slab_bytes}: "
                "start the node with a larger --slab"
            )

    def _renewed(self) -> int:
        # One counter for the arena: a slot number or offset cut anew never repeats a generation.
        self._generation += 1
        return self._generation

    def _cut(self, slab: Slab, owner: Owner, slot_bytes: int) -> None:
        self._fit_out(slab, owner, slot_bytes)
        self._free[owner].extend(reversed(slab.slots))

    def _fit_out(self, slab: Slab, owner: Owner, slot_bytes: int) -> None:
        slab.slot_bytes = slot_bytes
        for i in range(self.slots_in_slab(slot_bytes)):
            slot = Slot(self._next_number, slab.offset + i * slot_bytes, owner, tier=self.tier)
            self._next_number += 1
            slab.slots.append(slot)
            self._slab_of[slot.number] = slab
