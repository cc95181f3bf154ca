"""An arena cut into slabs; a slab holds equal slots of one owner. An empty slab may change owner.

Pure bookkeeping: which places are used, which are free. It never touches memory and never evicts;
the caller empties slots first when `take` finds none. A `Slot` stands for one use of a place, from
`take` to `give_all`; a place that an earlier run of the node left in use has none until `wake`.

Slabs may be on several NUMA nodes of the host. Which one a caller is near decides what it is given
first, and nothing else: what can be had is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.errors import Invalid


@dataclass(eq=False, slots=True)
class Slab:
    """One run of the arena and the places it is cut into."""

    number: int
    offset: int
    numa: int = 0
    owner: Owner | None = None  # None while it is empty
    slot_bytes: int = 0
    places: int = 0
    free: list[int] = field(default_factory=list)  # places nobody has, the next to give out last
    slots: dict[int, Slot] = field(default_factory=dict)  # by place; the others in use sleep
    retired: bool = False  # gives out no place any more

    @property
    def used(self) -> int:
        return self.places - len(self.free)

    @property
    def awake(self) -> bool:
        """Whether every place in use has its slot."""
        return len(self.slots) == self.used


class Slabs:
    """Free and used places of one arena."""

    def __init__(
        self,
        arena_bytes: int,
        slab_bytes: int,
        tier: Tier = Tier.DRAM,
        generation: int = 0,
        first: int = 0,
        numa: Sequence[int] = (),
    ) -> None:
        """`first`: offset at which they begin. `numa`: the NUMA node of each slab; empty where all
        are alike."""
        if slab_bytes < 1 or arena_bytes < slab_bytes:
            raise Invalid(f"an arena of {arena_bytes} bytes holds no slab of {slab_bytes} bytes")
        self.slab_bytes, self.tier, self._first = slab_bytes, tier, first
        count = arena_bytes // slab_bytes
        self._slabs = [
            Slab(i, first + i * slab_bytes, node)
            for i, node in zip(range(count), numa or [0] * count, strict=True)
        ]
        self._numa = sorted({slab.numa for slab in self._slabs})
        self._empty: dict[int, list[Slab]] = {}  # by NUMA node; the lowest is taken first
        self.any_retired = False
        self._owned = Counter[Owner]()  # slabs, by whose they are
        self._find_empty()
        # Slabs with free places, by whose they are and NUMA node, then by number.
        self._open: dict[tuple[Owner, int], dict[int, Slab]] = {}
        self._room = Counter[Owner]()  # free places in those
        self._next_number = 0
        self.generation = generation  # the last given out: a later one is higher

    def take(self, owner: Owner, slot_bytes: int) -> Slot | None:
        """A slot of the owner's, in a newly cut slab if need be; None when no place is free."""
        taken = self.take_all(owner, slot_bytes, 1)
        return taken[0] if taken else None

    def take_all(
        self, owner: Owner, slot_bytes: int, count: int, near: int | None = None
    ) -> list[Slot]:
        """So many slots, or all that can be had; first those on the NUMA node `near`, where there
        are any."""
        self._check_fits(slot_bytes)
        taken: list[Slot] = []
        while len(taken) < count:
            slab = self._found(owner, slot_bytes, near)
            if slab is None:
                break
            some = min(count - len(taken), len(slab.free))
            places, slab.free = slab.free[: -some - 1 : -1], slab.free[:-some]
            taken += self._made(slab, places, self.generation + 1)
            self.generation += some  # one counter for the arena: see `_renewed`
            self._room[owner] -= some
            if not slab.free:
                del self._open[owner, slab.numa][slab.number]
        return taken

    def give_all(self, slots: Sequence[Slot]) -> None:
        """Take back EMPTY slots' places; a slab whose last place comes back may change owner."""
        for slot in slots:
            assert slot.state is State.EMPTY, "only an empty slot is given back"
            assert (slot.pins, slot.windows, slot.moves) == (0, 0, 0), "somebody may still use it"
            slot.generation = self._renewed()
            slab, place = self._place(slot.offset)
            assert slab.slots.pop(place) is slot, "a slot is given back twice"
            slab.free.append(place)
            if slab.retired:
                continue
            if len(slab.free) == 1:
                self._open.setdefault((slot.owner, slab.numa), {})[slab.number] = slab
            self._room[slot.owner] += 1
            if not slab.used:
                self._close(slab)
                self._disown(slab)
                self._empty[slab.numa].append(slab)

    def restore(
        self,
        owners: Sequence[tuple[Owner, int]],
        owner: NDArray[np.int64],
        offset: NDArray[np.uint64],
        generation: NDArray[np.uint64],
        vouched: Callable[[int], bool] = lambda row: True,
    ) -> NDArray[np.bool_]:
        """Take up, before any other use, the places that records of an earlier run name.

        Parallel arrays, a row for each record; `owners` are (owner, bytes of its slots), which
        `owner` numbers. Answers which rows can be what they say: where two claim one place, or one
        slab, the later generation is believed; of a slab the latest that is `vouched`, which is
        asked only there. Those in use sleep, all others are free.
        """
        sizes = np.array([size for _, size in owners], np.int64)[owner]
        good = offset < self.capacity_bytes
        at = np.where(good, offset, 0).astype(np.int64)
        number, within = np.divmod(at, self.slab_bytes)
        good &= (within % sizes == 0) & (within + sizes <= self.slab_bytes)
        latest = np.lexsort((generation, number))
        latest = latest[good[latest]]
        claimed = number[latest]
        last = np.append(claimed[1:] != claimed[:-1], True)[: len(latest)]
        owner_of = np.full(len(self._slabs), -1)
        owner_of[claimed[last]] = owner[latest][last]
        for one in np.unique(claimed[owner_of[claimed] != owner[latest]]):
            begin, end = np.searchsorted(claimed, [one, one + 1])
            claims = latest[begin:end][::-1]
            true = next((i for i, row in enumerate(claims.tolist()) if vouched(row)), 0)
            owner_of[one] = owner[claims[true]]
            good[claims[:true]] = False
        good &= owner_of[number] == owner
        rows = np.lexsort((generation, at))
        rows = rows[good[rows]]
        last = np.append(at[rows][1:] != at[rows][:-1], True)[: len(rows)]
        good[rows[~last]] = False
        rows = rows[last]  # by place: slab for slab
        for some in np.split(rows, np.flatnonzero(np.diff(number[rows])) + 1):
            if not len(some):
                break  # there are no rows at all
            slab = self._slabs[number[some[0]]]
            self._own(slab, *owners[owner[some[0]]])
            free = np.ones(slab.places, bool)
            free[within[some] // slab.slot_bytes] = False
            slab.free = np.flatnonzero(free)[::-1].tolist()
            if slab.free:
                self._offer(slab)
        self._find_empty()
        self.generation = max(self.generation, int(generation[rows].max(initial=0)))
        return good

    def wake(self, offset: int, generation: int) -> Slot:
        """The slot of a place that was restored."""
        slab, place = self._place(offset)
        assert place >= 0 and place not in slab.slots, "nobody sleeps there"
        return self._made(slab, [place], generation)[0]

    def retire(self, begin: int, end: int) -> None:
        """Give out no place of these whole slabs any more. What is in use there stays until it is
        back."""
        for slab in self._between(begin, end):
            slab.retired = True
            self._close(slab)
        self._find_empty()

    def resume(self, begin: int, end: int) -> None:
        """Undo `retire`."""
        for slab in self._between(begin, end):
            assert slab.retired, "a slab that was not retired"
            slab.retired = False
            if not slab.used:
                self._disown(slab)
            elif slab.free:
                self._offer(slab)
        self._find_empty()

    def retire_all(self) -> None:
        """The same of every slab."""
        self.retire(self._first, self._first + self.capacity_bytes)

    def retired(self, slot: Slot) -> bool:
        """Whether the slot's place is given out no more once it is back."""
        return self.slab_of(slot).retired

    def at(self, offset: int) -> Slot | None:
        """The slot in use whose head stands at an offset of the arena."""
        within = 0 <= offset - self._first < self.capacity_bytes
        slab, place = self._place(offset) if within else (None, 0)
        return None if slab is None else slab.slots.get(place)

    def slab_of(self, slot: Slot) -> Slab:
        return self._slabs[(slot.offset - self._first) // self.slab_bytes]

    def room(self, owner: Owner, slot_bytes: int) -> int:
        """How many slots the owner can take as things stand."""
        self._check_fits(slot_bytes)
        return self._room[owner] + self.empty_slabs * self.slots_in_slab(slot_bytes)

    def share_bytes(self, slot_bytes: int) -> int:
        """What one of such slots takes of its slab. Raises `Invalid` where it is larger."""
        self._check_fits(slot_bytes)
        return self.slab_bytes // self.slots_in_slab(slot_bytes)

    def most(self, slot_bytes: int) -> int:
        """How many of such slots there can be."""
        return len(self._slabs) * self.slots_in_slab(slot_bytes)

    def slots_in_slab(self, slot_bytes: int) -> int:
        return self.slab_bytes // slot_bytes

    def owns(self, owner: Owner) -> bool:
        """Whether any slab is the owner's."""
        return self._owned[owner] > 0

    def occupied(self) -> list[Slab]:
        return [slab for slab in self._slabs if slab.owner is not None]

    def round(self, turn: int, count: int) -> list[Slab]:
        """So many, or all if there are fewer, from a turn on that goes round and round."""
        here = self._slabs
        return [here[at % len(here)] for at in range(turn, turn + min(count, len(here)))]

    @property
    def empty_slabs(self) -> int:
        return sum(map(len, self._empty.values()))

    def by_numa(self) -> dict[int, tuple[int, int]]:
        """How many slabs each NUMA node has, and how many of those are empty; nothing where all
        slabs are alike."""
        if len(self._numa) == 1:
            return {}
        count = Counter(slab.numa for slab in self._slabs)
        return {node: (count[node], len(self._empty[node])) for node in self._numa}

    @property
    def capacity_bytes(self) -> int:
        return len(self._slabs) * self.slab_bytes

    @property
    def usable_bytes(self) -> int:
        """Of `capacity_bytes`, those of slabs that are not retired, or in use yet."""
        return sum(self.slab_bytes for slab in self._slabs if slab.used or not slab.retired)

    def check(self) -> None:
        in_service = [slab for slab in self._slabs if not slab.retired]
        assert self.any_retired == (len(in_service) < len(self._slabs)), "retired, and not known"
        assert all(one.numa == node for node, some in self._empty.items() for one in some), "astray"
        empty = sorted(slab.number for some in self._empty.values() for slab in some)
        assert empty == [s.number for s in in_service if s.owner is None], "a slab is lost"
        owned = Counter(slab.owner for slab in self._slabs if slab.owner is not None)
        assert owned == +self._owned, "slabs are miscounted"
        room = Counter[Owner]()
        for slab in self._slabs:
            free, places = set(slab.free), set(range(slab.places))
            assert len(free) == len(slab.free), "a place is free twice"
            assert free <= places and slab.slots.keys() <= places - free, "a free place is in use"
            if slab.owner is None:
                assert not slab.places, "a slab without owner is cut"
                continue
            assert slab.places == self.slots_in_slab(slab.slot_bytes), "slots beyond their slab"
            assert slab.used or slab.retired, "a slab without used slots keeps its owner"
            is_open = slab.number in self._open.get((slab.owner, slab.numa), {})
            assert is_open == (bool(free) and not slab.retired), "free places that nobody finds"
            room[slab.owner] += 0 if slab.retired else len(free)
            for place, slot in slab.slots.items():
                assert slot.owner == slab.owner, "a slab of two owners"
                assert slot.offset == slab.offset + place * slab.slot_bytes, "slots overlap"
                assert slot.generation <= self.generation, "a generation to be given out again"
        assert +room == +self._room, "free places are miscounted"

    def _check_fits(self, slot_bytes: int) -> None:
        if slot_bytes > self.slab_bytes:
            raise Invalid(
                f"a slot of {slot_bytes} bytes is larger than a slab of {self.slab_bytes}: "
                "start the node with a larger --slab"
            )

    def _renewed(self) -> int:
        # One counter for the arena: a place cut anew never repeats a generation.
        self.generation += 1
        return self.generation

    def _between(self, begin: int, end: int) -> list[Slab]:
        assert begin % self.slab_bytes == end % self.slab_bytes == 0, "a part of a slab"
        first, last = begin - self._first, end - self._first
        return self._slabs[first // self.slab_bytes : last // self.slab_bytes]

    def _find_empty(self) -> None:
        self._empty = {node: [] for node in self._numa}
        for slab in self._slabs[::-1]:
            if slab.owner is None and not slab.retired:
                self._empty[slab.numa].append(slab)
        self.any_retired = any(slab.retired for slab in self._slabs)

    def _found(self, owner: Owner, slot_bytes: int, near: int | None) -> Slab | None:
        """One with places for the owner, cut for it if need be; None where there is none.

        To be near comes before all else, so an owner may have an open slab on each NUMA node.
        """
        for nodes in ([near], self._numa) if near in self._empty else (self._numa,):
            for node in nodes:
                if opened := self._open.get((owner, node)):
                    return next(iter(opened.values()))
            # Of whoever says nothing, all NUMA nodes get as much.
            empty = max((self._empty[node] for node in nodes), key=len)
            if empty:
                return self._cut(empty.pop(), owner, slot_bytes)
        return None

    def _cut(self, slab: Slab, owner: Owner, slot_bytes: int) -> Slab:
        self._own(slab, owner, slot_bytes)
        slab.free = list(range(slab.places))[::-1]
        self._offer(slab)
        return slab

    def _own(self, slab: Slab, owner: Owner, slot_bytes: int) -> None:
        slab.owner, slab.slot_bytes = owner, slot_bytes
        slab.places = self.slots_in_slab(slot_bytes)
        self._owned[owner] += 1

    def _disown(self, slab: Slab) -> None:
        if slab.owner is not None:
            self._owned[slab.owner] -= 1
        slab.owner, slab.places, slab.free = None, 0, []

    def _offer(self, slab: Slab) -> None:
        """Have its free places found."""
        assert slab.owner is not None
        self._open.setdefault((slab.owner, slab.numa), {})[slab.number] = slab
        self._room[slab.owner] += len(slab.free)

    def _close(self, slab: Slab) -> None:
        """Let nobody find its free places."""
        if slab.owner is None:
            return
        opened = self._open.get((slab.owner, slab.numa), {})
        if opened.pop(slab.number, None) is not None:
            self._room[slab.owner] -= len(slab.free)

    def _made(self, slab: Slab, places: Sequence[int], generation: int) -> list[Slot]:
        """Slots of these places, with consecutive generations."""
        assert slab.owner is not None
        owner, base, size, tier = slab.owner, slab.offset, slab.slot_bytes, self.tier
        first = self._next_number
        self._next_number += len(places)
        made = [
            Slot(first + i, base + place * size, owner, State.EMPTY, generation + i, tier=tier)
            for i, place in enumerate(places)
        ]
        slab.slots.update(zip(places, made, strict=True))
        return made

    def _place(self, offset: int) -> tuple[Slab, int]:
        """Of an offset inside the arena; -1, which is no place, where no slot can begin."""
        slab = self._slabs[(offset - self._first) // self.slab_bytes]
        if not slab.places:
            return slab, -1
        place, within = divmod(offset - slab.offset, slab.slot_bytes)
        # The end of a slab that no slot fills may have held a head when it was cut otherwise.
        return slab, place if not within else -1
