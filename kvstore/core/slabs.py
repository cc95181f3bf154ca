"""An arena cut into slabs; a slab holds equal slots of one owner. An empty slab may change owner.

Pure bookkeeping: which slots exist, which are free. It never touches memory and never evicts; the
caller empties slots first when `take` finds none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.core.lifecycle import Owner, Slot, State
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

    def __init__(self, arena_bytes: int, slab_bytes: int) -> None:
        if slab_bytes < 1 or arena_bytes < slab_bytes:
            raise Invalid(f"an arena of {arena_bytes} bytes holds no slab of {slab_bytes} bytes")
        self.slab_bytes = slab_bytes
        self._slabs = [Slab(i, i * slab_bytes) for i in range(arena_bytes // slab_bytes)]
        self._empty = self._slabs[::-1]  # the lowest is taken first
        self._free: dict[Owner, list[Slot]] = {}
        self._slab_of: dict[int, Slab] = {}  # slot number -> slab
        self._next_number = 0
        self._generation = 0

    def take(self, owner: Owner, slot_bytes: int) -> Slot | None:
        """A free slot of the owner's, of a newly cut slab if need be; None when there is none."""
        if slot_bytes > self.slab_bytes:
            raise Invalid(
                f"a slot of {slot_bytes} bytes is larger than a slab of {self.slab_bytes}: "
                "start the node with a larger --slab"
            )
        free = self._free.setdefault(owner, [])
        if not free:
            if not self._empty:
                return None
            self._cut(self._empty.pop(), owner, slot_bytes)
        slot = free.pop()
        self._slab_of[slot.number].used += 1
        slot.generation = self._renewed()
        return slot

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
        slab = self._slabs[offset // self.slab_bytes] if offset < self.capacity_bytes else None
        if slab is None or not slab.slots or (offset - slab.offset) % slab.slot_bytes:
            return None
        return slab.slots[(offset - slab.offset) // slab.slot_bytes]

    def occupied(self) -> list[Slab]:
        return [slab for slab in self._slabs if slab.slots]

    @property
    def empty_slabs(self) -> int:
        return len(self._empty)

    @property
    def capacity_bytes(self) -> int:
        return len(self._slabs) * self.slab_bytes

    def check(self) -> None:
        free = {slot.number for slots in self._free.values() for slot in slots}
        for slab in self._slabs:
            numbers = {slot.number for slot in slab.slots}
            assert slab.used == len(numbers - free), f"slab {slab.number} miscounts its used slots"
            assert (slab in self._empty) == (not slab.slots), "an empty slab is not on the list"
            assert len({slot.owner for slot in slab.slots}) <= 1, "a slab of two owners"
            ends = [slab.offset, *(slot.offset for slot in slab.slots)]
            assert all(slab.offset <= o < slab.offset + self.slab_bytes for o in ends)
        assert free <= self._slab_of.keys(), "a free slot of no slab"

    def _renewed(self) -> int:
        # One counter for the arena: a slot number or offset cut anew never repeats a generation.
        self._generation += 1
        return self._generation

    def _cut(self, slab: Slab, owner: Owner, slot_bytes: int) -> None:
        slab.slot_bytes = slot_bytes
        for i in range(self.slab_bytes // slot_bytes):
            slot = Slot(self._next_number, slab.offset + i * slot_bytes, owner)
            self._next_number += 1
            slab.slots.append(slot)
            self._slab_of[slot.number] = slab
        self._free[owner].extend(reversed(slab.slots))
