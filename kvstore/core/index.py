"""What a node holds: stored key -> sealed slot, listed only where every block before it is listed.

Because what is listed is closed towards the start of a prompt, presence along a prefix is monotone
and `longest` finds its end by bisection. A block behind a hole (its parent rotted or was evicted)
stays held but unlisted, is no hit, is evicted first, and is listed again when the hole heals.

Which listed block goes next is the ranking's to say. A touched prefix is touched deepest block
first, so that where nothing is known the least recently used leaves go first. What is known of a
dropped block's uses is kept with the reason for its being gone.

What an earlier run left sleeps (`kvstore.core.sleepers`) until it is asked for by its key, or its
place is wanted: it is held and listed like any other, and wakes as the least recently used.

Whatever becomes listed, is listed no more, or is found in other tiers is said to the `listing`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from kvstore.block import Miss
from kvstore.core.coming_after import follow, waiting_for
from kvstore.core.fingerprints import ON_SSD
from kvstore.core.gone import Gone
from kvstore.core.lifecycle import NOBODY, Owner, Slot, State, Tier
from kvstore.core.listing import Listing
from kvstore.core.ranking import Ranking, Seen
from kvstore.core.sleepers import Covers, Sleepers
from kvstore.core.unlisted import Unlisted


class Index:
    """Sealed blocks by stored key, their chains, their recency, and why others are gone."""

    def __init__(self) -> None:
        self._slots: dict[bytes, Slot] = {}
        self._ranking = Ranking(self._slots)  # of the listed
        self._unlisted = Unlisted()
        self._orphans: dict[bytes, set[bytes]] = {}  # absent parent -> held children
        self.gone = Gone()
        self.sleepers = Sleepers()
        self.listing = Listing()

    def recovered(self, sleepers: Sleepers) -> None:
        """What an earlier run left, before all else."""
        assert not len(self), "blocks are recovered before any other comes"
        self.sleepers = sleepers
        self.listing.put_all(sleepers.listed_prints(), ON_SSD)

    def __len__(self) -> int:
        return len(self._slots) + len(self.sleepers)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots or key in self.sleepers

    def having(self, keys: Iterable[bytes]) -> set[bytes]:
        """Those of the keys whose blocks are held."""
        awake, asleep = self._slots, self.sleepers if len(self.sleepers) else ()
        return {key for key in keys if key in awake or key in asleep}

    def __iter__(self) -> Iterator[Slot]:
        """Blocks that are awake."""
        return iter(self._slots.values())

    def keys(self, covers: Covers) -> Iterator[bytes]:
        """The stored keys as they are now, for whoever looks each up again when its turn comes.
        Of blocks that sleep those that are covered, of others all."""
        return chain(list(self._slots), map(self.sleepers.key, self.sleepers.rows(covers)))

    def get(self, key: bytes) -> Slot | None:
        """The listed slot of a key."""
        slot = self.held(key)
        return slot if slot is not None and slot.listed else None

    def held(self, key: bytes) -> Slot | None:
        """The slot of a key, listed or not."""
        slot = self._slots.get(key)
        if slot is None and (row := self.sleepers.find(key)) is not None:
            self._wake(row)
            slot = self._slots[key]
        return slot

    def peek(self, key: bytes) -> Slot | None:
        """The slot of a key, listed or not. Of one that sleeps a likeness, and it sleeps on."""
        row = self.sleepers.find(key)
        return self._slots.get(key) if row is None else self.sleepers.peek(row)

    def prove(self, slot: Slot) -> None:
        """The bytes of a slot that `peek` gave were read, and are what its record says."""
        slot.unproven = False
        if (row := self.sleepers.find(slot.key)) is not None:
            self.sleepers.prove(row)

    def why_not(self, key: bytes) -> Miss:
        """Why `get` has nothing."""
        return Miss.UNLISTED if key in self else self.gone.why(key)

    def longest(self, keys: Sequence[bytes]) -> int:
        """How many leading keys of a chain are listed, in O(log n) look-ups."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if self._listed(keys[middle]):
                low = middle + 1
            else:
                high = middle
        return low

    def get_all(self, keys: Sequence[bytes]) -> list[Slot | None]:
        """The listed slot of each key."""
        found = self._held_all(keys)
        return [slot if slot is not None and slot.listed else None for slot in found]

    def add(self, slot: Slot) -> None:
        """Hold a sealed slot, listed if the block before it is listed or it is a first block."""
        self.add_all([slot])

    def add_all(self, slots: Sequence[Slot]) -> None:
        """Hold each of these, those of one prompt in its order. To those that are listed it is one
        use, the first of a prompt the last to be touched."""
        # What nothing is behind is told to the ranking and the listing with the rest.
        simple: list[Slot] = []
        before: list[Seen | None] = []
        asleep, held = len(self.sleepers) > 0, self._slots
        known = self.gone.back_all([slot.key for slot in slots])
        for slot, seen in zip(slots, known, strict=True):
            key, parent_key = slot.key, slot.parent
            assert slot.state is State.SEALED and key not in held
            held[key] = slot
            orphans = self._orphans.pop(key, None)
            if orphans is not None:
                slot.children = orphans
            if asleep:
                slot.sleeping = len(self.sleepers.behind(key))
            if parent_key:
                parent = held.get(parent_key) or self.held(parent_key)
                if parent is None:
                    self._orphans.setdefault(parent_key, set()).add(key)
                else:
                    parent.bears(key)
                if parent is None or not parent.listed:
                    self._unlisted.add(slot)
                    self._forget(seen)
                    continue
            elif slot.after:
                follow(slot, self.held(slot.after))
            if orphans is None and not slot.sleeping:
                slot.listed = True
                simple.append(slot)
                before.append(seen)
                continue
            self._enter(simple, before)
            self._list(slot, seen)
            simple, before = [], []
        self._enter(simple, before)
        if len(simple) < len(slots) > 1:  # not in one piece, so not in the right order
            self._ranking.touch([slot for slot in reversed(slots) if slot.listed])

    def drop(self, key: bytes, why: Miss) -> Slot:
        """Forget a block; what was listed behind it is unlisted."""
        slot = self._slots[key]
        self.drop_all([slot], why)
        return slot

    def drop_all(self, slots: Sequence[Slot], why: Miss) -> None:
        """The same for each of these, in this order; none of them sleeps."""
        # What they were is told to the ranking and the listing for all of them at once.
        listed, before, behind = list[Slot](), list[bytes](), list[Slot]()
        for slot in slots:
            key = slot.key
            del self._slots[key]
            if slot.listed:
                listed.append(slot)
                before.append(slot.behind)
                if slot.family:
                    behind += self._unlist_behind(slot)
            else:
                self._unlisted.discard(slot)
            if waiting := waiting_for(slot, self._slots):
                self._orphans[key] = waiting
            parent = self._slots.get(slot.behind)
            slot.listed, slot.after, slot.children, slot.sleeping = False, b"", NOBODY, 0
            if parent is not None:
                parent.loses(key)
            elif family := self._orphans.get(slot.parent):
                family.discard(key)
                if not family:
                    del self._orphans[slot.parent]
        keys = [slot.key for slot in listed]
        left = self._ranking.leave(listed, evicted=why is Miss.EVICTED)
        seen = dict(zip(keys, left, strict=True))
        self.gone.add([slot.key for slot in slots], why, [seen.get(one.key) for one in slots])
        forgotten = self.gone.fit(len(self._slots))
        for one in (*forgotten, *self._ranking.leave(behind, evicted=False)):
            self._ranking.forget(one)
        self.listing.drop_all([*keys, *(slot.key for slot in behind)])
        for key in dict.fromkeys(before):
            parent = self._slots.get(key)
            if parent is not None and parent.listed and not parent.family:
                self._ranking.bared(parent)

    def replace(self, slot: Slot) -> Slot:
        """Let another sealed slot of a held key stand for it, in its place; returns the old one."""
        old = self._slots[slot.key]
        assert slot is not old and slot.state is State.SEALED and not slot.listed
        assert (slot.parent, slot.owner) == (old.parent, old.owner), "not a copy of the same block"
        slot.short, slot.listed = old.short, old.listed
        slot.after, slot.children, slot.sleeping = old.after, old.children, old.sleeping
        old.listed, old.after, old.children, old.sleeping = False, b"", NOBODY, 0
        self._slots[slot.key] = slot
        if slot.listed:
            self.listing.put(slot)
        return old

    def touch(self, keys: Sequence[bytes]) -> list[Slot]:
        """Mark a prefix as used now, deepest block first; its held blocks, in that order."""
        held = [slot for slot in self._held_all(keys[::-1]) if slot is not None]
        self._ranking.touch([slot for slot in held if slot.listed])
        return held

    def coldest(
        self,
        owner: Owner | None = None,
        tenant: str | None = None,
        spared: Collection[bytes] = (),
        lowest: Tier | None = None,
    ) -> Iterator[Slot]:
        """Blocks to evict, in order: unlisted first, then leaves, as the ranking says.

        Each is what comes first once those before it are gone, so a caller can choose all it needs
        before it drops any. With an owner or a tenant, only theirs; `lowest`: only those of which
        that is the lowest tier. A held or spared block stays, and so do the blocks before it:
        evicting those would make it unreachable.
        """

        def stays(slot: Slot) -> bool:
            return slot.held or slot.key in spared

        unlisted = map(self._slots.__getitem__, self._unlisted.of(owner, tenant))
        yield from (one for one in unlisted if lowest in (None, one.lowest) and not stays(one))
        yield from self._ranking.coldest(owner, tenant, lowest, stays)

    def moved(self, slot: Slot) -> None:
        """A held block's lowest tier is another now."""
        if slot.listed:
            self._ranking.moved(slot)
            self.listing.put(slot)

    def worth(self, slot: Slot) -> tuple[float, int]:
        """What it is worth to keep a held block, and its last use; the least goes first."""
        return self._ranking.worth(slot.key) if slot.key in self._ranking.recency else (-1.0, 0)

    def kind(self, slot: Slot) -> int:
        """The ranking's kind of a held block; -1 for one that is not listed."""
        seen = self._ranking.recency.get(slot.key)
        return -1 if seen is None else seen.kind

    def owners_of(self, tenant: str) -> list[Owner]:
        """Those of which a tenant may have blocks."""
        known = [*self._ranking.places(), *self.sleepers.places()]
        return list(dict.fromkeys(owner for owner, name in known if name == tenant))

    def rouse(self, owner: Owner, tenant: str, count: int) -> list[Slot]:
        """Wake the longest-written sleepers, up to `count` leaves with what is before them, so that
        `coldest` can name them. The leaves."""
        rows = list(islice(self.sleepers.oldest(owner, tenant), count))
        for row in rows:
            self._wake(row)
        return [self._slots[self.sleepers.key(row)] for row in rows]

    def rouse_places(self, begin: int, end: int) -> None:
        """Wake whatever sleeps in these places of its tier."""
        for row in self.sleepers.within(begin, end):
            self._wake(row)

    def unused(self, slot: Slot) -> bool:
        """Whether a block of an earlier run has not been used in this one."""
        seen = self._ranking.recency.get(slot.key)
        return seen is not None and seen.uses == 0

    def recent(self) -> Iterator[bytes]:
        """Stored keys of blocks that are awake, most recently used first, unlisted ones last."""
        return chain(reversed(self._ranking.recency), reversed(self._unlisted))

    @property
    def unlisted(self) -> int:
        return len(self._unlisted) + self.sleepers.unlisted

    def check(self) -> None:
        listed = self._ranking.recency.keys()
        unlisted = set(self._unlisted)
        assert listed | unlisted == self._slots.keys()
        assert listed.isdisjoint(unlisted), "listed and unlisted at once"
        self._ranking.check()
        self.sleepers.check()
        for key, slot in self._slots.items():
            assert slot.key == key and slot.state is State.SEALED
            assert slot.listed == (key in listed) == (slot not in self._unlisted)
            assert self.sleepers.find(key) is None
            asleep = self.sleepers.behind(key)
            assert len(asleep) == slot.sleeping, "sleepers behind a block are miscounted"
            assert all(self.sleepers.listed(row) == slot.listed for row in asleep)
            assert slot.parent not in self.sleepers, "awake before what stands before it"
            parent = self._slots.get(slot.parent) if slot.parent else None
            if slot.parent:
                assert slot.listed == (parent is not None and parent.listed), "closure is broken"
                family = self._orphans[slot.parent] if parent is None else parent.children
                assert key in family, "a parent does not know its child"
            else:
                assert slot.listed, "a first block is always listed"
            assert all(self._slots[child].behind == key for child in slot.children), "not its child"
            assert not slot.after or key in self._slots[slot.after].children, "after nothing"
        for parent_key, children in self._orphans.items():
            assert children and parent_key not in self._slots, "orphans of a held parent"

    def owners(self) -> dict[Owner, int]:
        counts = self.sleepers.owners()
        for slot in self._slots.values():
            counts[slot.owner] = counts.get(slot.owner, 0) + 1
        return counts

    def _enter(self, slots: Sequence[Slot], before: Sequence[Seen | None]) -> None:
        """Listed blocks, new ones, behind which nothing is listed but each other."""
        if slots:
            self._ranking.enter(slots, before)
            self.listing.put_new(slots)

    def _unlist_behind(self, slot: Slot) -> list[Slot]:
        """What stands behind a listed block is listed no more; those of it that are awake."""
        behind = self._behind(slot)
        for one in behind:
            one.listed = False
            self._unlisted.add(one)
        asleep = [one.key for one in (slot, *behind) if one.sleeping]
        self.listing.put_all(self.sleepers.list_behind(asleep, listed=False), 0)
        return behind

    def _list(self, slot: Slot, before: Seen | None) -> None:
        entered = [slot, *self._behind(slot)]
        for one in entered:
            one.listed = True
            self._unlisted.discard(one)
        # Deepest first: a parent must be younger than its children.
        for one in reversed(entered):
            self._ranking.enter([one], [before if one is slot else None])
        for one in entered:
            self.listing.put(one)
        asleep = [one.key for one in entered if one.sleeping]
        self.listing.put_all(self.sleepers.list_behind(asleep, listed=True), ON_SSD)

    def _listed(self, key: bytes) -> bool:
        """Whether `get` has a slot, without waking anybody."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot.listed
        row = self.sleepers.find(key)
        return row is not None and self.sleepers.listed(row)

    def _wake(self, row: int) -> None:
        for one in self.sleepers.line(row):
            listed = self.sleepers.listed(one)
            slot = self.sleepers.wake(one)
            self._slots[slot.key] = slot
            slot.listed = listed
            parent = self._slots.get(slot.parent)
            if parent is not None:
                parent.bears(slot.key)
                parent.sleeping -= 1
            elif slot.parent:
                self._orphans.setdefault(slot.parent, set()).add(slot.key)
            if listed:
                self._ranking.enter_last(slot)
            else:
                self._unlisted.add(slot)

    def _held_all(self, keys: Sequence[bytes]) -> list[Slot | None]:
        """As `held` of each."""
        if not len(self.sleepers):
            return list(map(self._slots.get, keys))
        awake = self._slots
        return [awake.get(key) or self.held(key) for key in keys]

    def _forget(self, seen: Seen | None) -> None:
        if seen is not None:
            self._ranking.forget(seen)

    def _behind(self, slot: Slot) -> list[Slot]:
        """Held blocks behind a slot, each after its parent: they are listed exactly with it."""
        found, todo = [], sorted(slot.children)  # a set of bytes has another order in each process
        while todo:
            child = self._slots[todo.pop()]
            if child.after:
                continue  # it stands alone
            found.append(child)
            todo.extend(sorted(child.children))
        return found
