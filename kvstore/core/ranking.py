"""Which listed block goes next: of the leaves, the one that is worth least to keep.

A block's kind is how often it was used (once, twice or thrice, up to seven times, more), and short
last blocks, which a longer prompt cannot use, are a kind of their own. What a kind is worth at an
age is learned in a `LifeTable` from every use, of evicted blocks that are still remembered too.
Nothing is learned from a use soon after another: that is one request that asks twice.

Blocks are ranked apart by the lowest tier that they are in, since room is made in one tier at a
time. The leaves of a kind lie in two heaps, oldest first and youngest first, and only these two
ends are compared: worth mostly falls with age, or all of a kind is worth so little that the newest
should not have come. Where worth is equal the least recently used goes, so while nothing is known
this is LRU. A block is touched after those behind it, so a parent is always younger than its
children.

A use, a drop and a choice cost the logarithm of the number of leaves. Learning stops wherever it
finds less than LRU would: see `Rival`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvstore.core.leaves import End, Entry, Leaves
from kvstore.core.life_table import LifeTable
from kvstore.core.lifecycle import Owner, Slot, Tier
from kvstore.core.rival import Rival
from kvstore.kernels.keeping import AGES, LEARN_TICKS, MANY_USES, ONE_USE, TICK, TICKS_MAX

SHORT = 4  # the kind of short last blocks, after those by number of uses
KINDS = SHORT + 1
FIRST_STAMP = 1 << 62  # in the middle: what an earlier run left is older

_SIGNS = (1, -1)  # of stamps, at the end of the oldest and at that of the youngest
_KIND = [uses.bit_length() - 1 for uses in range(1, MANY_USES + 1)]  # by the uses before this one

Worth = tuple[float, int, bytes]  # what goes first is least
Kind = tuple[int, Tier]  # by its uses, and the lowest tier that has it
Lane = tuple[tuple[Owner, str], Kind]  # (owner, tenant), kind


@dataclass(slots=True)
class Seen:
    """What is known of a block's uses; it outlives the block for a while."""

    stamp: int  # of the last touch, unique
    at: int  # the use count of its last use
    uses: int
    kind: int


class Ranking:
    """Listed blocks by recency, and their leaves by what they are worth."""

    def __init__(self, slots: Mapping[bytes, Slot]) -> None:
        self.recency: OrderedDict[bytes, Seen] = OrderedDict()  # least recent first
        self._slots = slots  # the index's own, whose `children` say what is a leaf
        self._leaves: dict[tuple[Owner, str], dict[Kind, Leaves]] = {}
        self._is_leaf = {lowest: partial(self._leaf, lowest) for lowest in Tier}
        self._table = LifeTable(KINDS)
        self._rival = Rival()
        self._worth: list[list[float]] = [[0.0] * AGES for _ in range(KINDS)]
        self._stamp = self._oldest = FIRST_STAMP
        self._uses = 0

    def enter(self, slots: Sequence[Slot], before: Sequence[Seen | None]) -> None:
        """Blocks are listed, for the first time or again: that is a use of each, the deepest the
        last. `before`: what is known of each, None for one that nobody remembers."""
        if any(before) or not self._rival.held.keys().isdisjoint([slot.key for slot in slots]):
            entered = [one or Seen(0, 0, 0, 0) for one in before]
            self.recency.update(zip([slot.key for slot in slots], entered, strict=True))
            self._use_all(slots, entered, found=False)
            self._touched(slots[::-1])
        else:
            self._enter_new(slots)

    def enter_last(self, slot: Slot) -> None:
        """A block of an earlier run is listed as the least recently used; of its uses nothing is
        known. What stands before it is listed already."""
        self._oldest -= 1
        seen = Seen(self._oldest, -TICKS_MAX * TICK, 0, SHORT if slot.short else 0)
        self.recency[slot.key] = seen
        self.recency.move_to_end(slot.key, last=False)
        if not slot.family:
            self._push(slot, seen)

    def touch(self, slots: Sequence[Slot]) -> None:
        """Listed blocks are used now, in this order, the deepest first."""
        again = max(len(self.recency) // ONE_USE, len(slots))
        for slot in slots:
            seen = self.recency[slot.key]
            if self._uses - seen.at > again:
                self._use_all([slot], [seen], found=True)
        self._touched(slots)

    def leave(self, slots: Sequence[Slot], *, evicted: bool) -> list[Seen]:
        """These blocks are no longer listed; what is known of each."""
        seen = [self.recency.pop(slot.key) for slot in slots]
        if not evicted:  # else its lane was read when it was chosen, and nothing waits there
            for slot, one in zip(slots, seen, strict=True):
                self._rival.lose(slot.key)
                self._leaves_at(slot.owner, slot.tenant, one.kind, slot.lowest).drop(slot.key)
        self._rival.fit(len(self.recency))
        return seen

    def bared(self, slot: Slot) -> None:
        """The last block behind a listed one is gone."""
        self._push(slot, self.recency[slot.key])

    def moved(self, slot: Slot) -> None:
        """A listed block's lowest tier is another now."""
        if not slot.family:
            self._push(slot, self.recency[slot.key])

    def forget(self, seen: Seen) -> None:
        """A block that left will not be recognised when it comes again."""
        self._table.lose(seen.kind, seen.at // TICK)

    def worth(self, key: bytes) -> tuple[float, int]:
        """Of a listed block: what it is worth to keep, and its last touch; the least goes first."""
        seen = self.recency[key]
        if not self._rival.pays:
            return 0.0, seen.stamp
        return self._worth[seen.kind][self._table.age(seen.at // TICK)], seen.stamp

    def places(self) -> Iterable[tuple[Owner, str]]:
        """Owners and tenants of whom blocks are or were listed."""
        return self._leaves.keys()

    def coldest(
        self,
        owner: Owner | None,
        tenant: str | None,
        lowest: Tier | None,
        stays: Callable[[Slot], bool],
    ) -> Iterator[Slot]:
        """Blocks in the order in which they go, each a leaf once those before it are gone; of one
        lowest tier, or (None) of all."""
        slots, recency = self._slots, self.recency
        gone: dict[bytes, int] = {}  # chosen children by parent
        chosen: set[bytes] = set()

        def goes(lowest_here: Tier, entry: Entry) -> bool:
            stamp, key = entry
            if key in chosen:
                return False
            slot, seen = slots.get(key), recency.get(key)
            if slot is None or seen is None or seen.stamp != abs(stamp):
                return False
            leaf = gone.get(key, 0) == slot.family
            return leaf and lowest_here is slot.lowest and not stays(slot)

        if owner is not None and tenant is not None:
            places = [(owner, tenant)]
        else:
            places = [one for one in self._leaves if owner in (None, one[0])]
            places = [one for one in places if tenant in (None, one[1])]
        ends = {
            (place, kind): leaves.ends(self._is_leaf[kind[1]])
            for place in places
            for kind, leaves in self._leaves.get(place, {}).items()
            if lowest in (None, kind[1])
        }
        first = {lane: [self._first(end, goes, lane) for end in ends[lane]] for lane in ends}
        # A block that was bared is put among its kind's only if it does not go right away: most of
        # what goes is a prompt from its end to its start. `hidden` is what it stands before.
        bare: tuple[bytes, Lane] | None = None
        hidden: dict[int, Worth | None] = {}
        while found := min([one for both in first.values() for one in both if one], default=None):
            key = found[2]
            if bare is not None and bare[0] != key:
                self._queue(ends, *bare)
                bare = None
            slot = slots[key]
            yield slot
            chosen.add(key)
            count = gone[slot.behind] = gone.get(slot.behind, 0) + 1
            lane = self._lane(slot) if bare is None else bare[1]
            if bare is not None:
                for side, before in hidden.items():
                    first[lane][side] = before
                bare = None
            for side, one in enumerate(first[lane]):
                if one is not None and one[2] == key:
                    first[lane][side] = self._first(ends[lane][side], goes, lane)
            parent = slots.get(slot.behind)
            if parent is None or count != parent.family or stays(parent):
                continue
            lane = self._lane(parent)
            if lane[0] not in places or lowest not in (None, lane[1][1]):
                continue
            bare, hidden = (parent.key, lane), {}
            worth = (*self.worth(parent.key), parent.key)
            both = first.setdefault(lane, [None, None])
            for side, before in enumerate(both):
                if before is None or _SIGNS[side] * worth[1] < _SIGNS[side] * before[1]:
                    hidden[side], both[side] = before, worth

    def check(self) -> None:
        stamps = [seen.stamp for seen in self.recency.values()]
        assert stamps == sorted(set(stamps)), "recency is not in the order of touches"
        queued = {
            ((place, kind), *entry)
            for place, lanes in self._leaves.items()
            for kind, leaves in lanes.items()
            for entry in leaves.entries()
        }
        for key, seen in self.recency.items():
            slot = self._slots[key]
            if not slot.family:
                assert (self._lane(slot), seen.stamp, key) in queued, "a leaf is not queued"

    def _enter_new(self, slots: Sequence[Slot]) -> None:
        """`enter` of blocks that neither this nor LRU knows: nothing is learned of a first use."""
        use, short = self._uses + 1, [slot.short for slot in slots]
        while short:
            if not (self._uses + 1) % TICK:
                self._pass_tick()
            of_tick = short[: TICK - (self._uses + 1) % TICK]
            self._table.wait(SHORT, sum(of_tick))
            self._table.wait(_KIND[0], len(of_tick) - sum(of_tick))
            self._uses += len(of_tick)
            short = short[len(of_tick) :]
        self._stamp += len(slots)
        stamp, first = self._stamp, _KIND[0]
        seen = [
            Seen(stamp - i, use + i, 1, SHORT if slot.short else first)
            for i, slot in enumerate(slots)
        ]
        keys = [slot.key for slot in slots]
        keys.reverse()
        seen.reverse()
        self.recency.update(zip(keys, seen, strict=True))
        self._rival.hold(keys)
        self._queue_leaves(slots[::-1], seen)

    def _use_all(self, slots: Sequence[Slot], seen: Sequence[Seen], found: bool) -> None:
        """Each is used now, in this order, and was there or not."""
        table, rival, count = self._table, self._rival, self._uses
        for slot, one in zip(slots, seen, strict=True):
            if found or slot.key in rival.held:  # of what neither has, nobody has anything to say
                rival.use(slot.key, found)
            uses = one.uses
            if uses:
                table.use(one.kind, one.at // TICK)
            count += 1
            if not count % TICK:
                self._pass_tick()
            one.uses, one.at = uses + 1, count
            one.kind = kind = SHORT if slot.short else _KIND[min(uses, MANY_USES - 1)]
            table.wait(kind)
        self._uses = count

    def _pass_tick(self) -> None:
        self._table.pass_tick()
        if self._table.tick % LEARN_TICKS == 0:
            self._worth = self._table.worth().tolist()

    def _touched(self, slots: Sequence[Slot]) -> None:
        """In this order, and what is a leaf is queued as one."""
        recency, keys = self.recency, [slot.key for slot in slots]
        touched = [recency[key] for key in keys]
        for stamp, seen in enumerate(touched, self._stamp + 1):
            seen.stamp = stamp
        for key in keys:
            recency.move_to_end(key)
        self._stamp += len(slots)
        self._rival.touch(keys)
        self._queue_leaves(slots, touched)

    def _queue_leaves(self, slots: Sequence[Slot], seen: Sequence[Seen]) -> None:
        """Those of these listed blocks that are leaves."""
        leaves: dict[tuple[Owner, str, int, Tier], dict[bytes, int]] = {}
        for slot, one in zip(slots, seen, strict=True):
            if not slot.children and not slot.sleeping:
                lowest = slot.tier if slot.twin is None else slot.lowest
                lane = (slot.owner, slot.tenant, one.kind, lowest)
                queued = leaves.get(lane)
                if queued is None:
                    queued = leaves[lane] = {}
                queued[slot.key] = one.stamp
        for (owner, tenant, kind, lowest), stamps in leaves.items():
            self._leaves_at(owner, tenant, kind, lowest).push(stamps, self._is_leaf[lowest])

    def _push(self, slot: Slot, seen: Seen) -> None:
        leaves = self._leaves_at(slot.owner, slot.tenant, seen.kind, slot.lowest)
        leaves.push({slot.key: seen.stamp}, self._is_leaf[slot.lowest])

    def _leaves_at(self, owner: Owner, tenant: str, kind: int, lowest: Tier) -> Leaves:
        lanes = self._leaves.setdefault((owner, tenant), {})
        leaves = lanes.get((kind, lowest))
        if leaves is None:
            leaves = lanes[kind, lowest] = Leaves()
        return leaves

    def _lane(self, slot: Slot) -> Lane:
        return (slot.owner, slot.tenant), (self.recency[slot.key].kind, slot.lowest)

    def _leaf(self, lowest: Tier, entry: Entry) -> bool:
        """Whether an entry is of a leaf as it is now, not as it once was."""
        seen = self.recency.get(entry[1])
        if seen is None or seen.stamp != abs(entry[0]):
            return False
        slot = self._slots[entry[1]]
        return not slot.children and not slot.sleeping and slot.lowest is lowest

    def _queue(self, ends: dict[Lane, tuple[End, End]], key: bytes, lane: Lane) -> None:
        """A block that was bared is one of its kind."""
        stamp = self.recency[key].stamp
        for sign, end in zip(_SIGNS, ends.setdefault(lane, (End([]), End([]))), strict=True):
            end.push((sign * stamp, key))

    def _first(self, end: End, goes: Callable[[Tier, Entry], bool], lane: Lane) -> Worth | None:
        """What goes first at one end of a kind."""
        found = end.first(partial(goes, lane[1][1]))
        return None if found is None else (*self.worth(found[1]), found[1])
