"""Which slots make room in a tier: all are chosen before one goes, so a refusal costs nobody.

In DRAM the copies of what is on SSD too go first: they cost a read to have again. Any other block
is lost, so it goes only when nothing that stays stands behind it; or, last of all, only what is in
retired slabs of SSD. One that leaves SSD goes from DRAM too: what was acknowledged as durable is so
for as long as the node has it. What an earlier run left and nobody asked for since goes before what
was used.

Whose blocks go is `Shares`' to say, which of them `Lanes`' and the index's. A slab changes owner
whole, so only where those who lose by it can spare all that they have in it; one who has nothing
gets it of those who can spare anything, so that few slabs keep nobody out. A tenant's own blocks go
when those above its level have nothing left to give: those of the owner that wants room, or, of
another that it uses less, a slab. So what a model left behind makes room for the next. For its
quota go those of its blocks that are worth least, of any owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import chain, islice

from kvstore.core.before_retired import before_retired
from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.less_used import LessUsed, may_go
from kvstore.core.lifecycle import Owner, Slot, Tier
from kvstore.core.shares import Shares
from kvstore.core.slabs import Slab, Slabs
from kvstore.errors import Overloaded, QuotaExceeded

RETRY_MS = 50  # when it may be worth asking a full pool again
_PASSED_MAX = 4_096  # sleepers that wake in vain in one go, in some 50 ms: other callers wait


class Room:
    """Decides for the tiers of one node, and changes nothing but who is awake, and whose turn it is
    to be looked at."""

    def __init__(
        self, index: Index, copied: Lanes, shares: Shares, ssd: Slabs | None = None
    ) -> None:
        """`copied`: slots in DRAM of blocks that are on SSD too."""
        self._index, self._copied, self._shares, self._ssd = index, copied, shares, ssd
        self._less_used = LessUsed(index, copied)

    def choose(
        self,
        slabs: Slabs,
        owner: Owner,
        tenant: str,
        slot_bytes: int,
        wanted: int,
        spared: Collection[bytes] = (),
    ) -> list[Slot]:
        """Slots that are to go so that `wanted` of the owner's fit, and the tenant's quota holds.

        Raises `QuotaExceeded`, or `Overloaded` where too much is held.
        """
        if not wanted:
            return []  # though the quota was lowered since
        chosen = self._over_quota(slabs, tenant, wanted * slot_bytes, spared)
        short = wanted - slabs.room(owner, slot_bytes)
        short -= sum(slot.owner == owner for slot in chosen)
        if short <= 0:
            return chosen
        gone = set(chosen)
        payers = dict(self._shares.payers(slabs.tier, tenant, wanted * slot_bytes))
        others = {name: most for name, most in payers.items() if most is not None}
        for payer, most in others.items():
            count = min(short, most // slot_bytes)
            found = list(islice(self._of(slabs, owner, payer, spared, count), count))
            chosen += found
            short -= len(found)
            others[payer] = most - len(found) * slot_bytes
        taken: set[int] = set()
        slack = 0 if self._shares.used(slabs.tier).get(tenant) else slabs.slab_bytes
        per_slab = slabs.slots_in_slab(slot_bytes)
        for slab in self._slabs(slabs, owner, others, slack, -(-short // per_slab), taken):
            chosen += slab.slots.values()
            short -= per_slab
        for slab in self._used_less(slabs, owner, tenant, spared, gone, -(-short // per_slab)):
            if slab.number not in taken:
                taken.add(slab.number)
                chosen += slab.slots.values()
                short -= per_slab
        # What goes for the quota comes up again: what stands before it may go after it.
        own_blocks = self._of(slabs, owner, tenant, spared, short + len(gone))
        found = list(islice((one for one in own_blocks if one not in gone), max(0, short)))
        chosen += found
        short -= len(found)
        own = {**others, tenant: slabs.capacity_bytes}
        for slab in self._slabs(slabs, owner, own, slack, -(-short // per_slab), taken):
            chosen += slab.slots.values()
            short -= per_slab
        if short > 0:
            raise Overloaded(
                f"no room for {wanted} blocks of {slot_bytes} bytes: blocks that are being "
                "written or are pinned fill the pool, or other tenants have no more than their due",
                RETRY_MS,
            )
        return list(dict.fromkeys(chosen))  # of the slabs some may go for the quota

    def first(
        self, slabs: Slabs, owner: Owner, tenant: str, slot_bytes: int, spared: Collection[bytes]
    ) -> Slot | None:
        """What would go first for one more of the owner's; None if there is room or nobody pays."""
        if self._shares.excess(slabs.tier, tenant, slot_bytes) > 0:
            return next(self._own(slabs, tenant, spared), None)
        if slabs.room(owner, slot_bytes):
            return None
        for payer, _ in self._shares.payers(slabs.tier, tenant, slot_bytes):
            for slot in self._of(slabs, owner, payer, spared):
                return slot
        return None

    def _over_quota(
        self, slabs: Slabs, tenant: str, more: int, spared: Collection[bytes]
    ) -> list[Slot]:
        """The tenant's own slots that are to go before it may have so many bytes more."""
        excess = self._shares.excess(slabs.tier, tenant, more)
        chosen: list[Slot] = []
        for slot in self._own(slabs, tenant, spared) if excess > 0 else ():
            chosen.append(slot)
            excess -= slabs.slab_of(slot).slot_bytes
            if excess <= 0:
                return chosen
        if excess > 0:
            raise QuotaExceeded(
                f"tenant {tenant!r} would have {excess} bytes more of {slabs.tier.name} than its "
                "quota allows, and what it has is being written or pinned",
                RETRY_MS,
            )
        return chosen

    def _own(self, slabs: Slabs, tenant: str, spared: Collection[bytes]) -> Iterator[Slot]:
        """The coldest of a tenant, whichever owner's they are."""
        owners = filter(slabs.owns, self._index.owners_of(tenant))
        lines = (self._of(slabs, owner, tenant, spared) for owner in owners)
        return merge(*lines, key=self._less_used.rank)

    def _of(
        self,
        slabs: Slabs,
        owner: Owner,
        tenant: str,
        spared: Collection[bytes],
        count: int = 1,
    ) -> Iterator[Slot]:
        """The coldest of one owner and tenant; what sleeps is woken for `count` of them."""
        if slabs.tier is Tier.SSD:
            yield from self._of_ssd(slabs, owner, tenant, spared, count)
            return
        copies = self._copied.coldest(owner, tenant, spared)
        alone = lost(slabs, self._index.coldest(owner, tenant, spared, Tier.DRAM))
        if self._ssd is None or not self._ssd.any_retired:
            yield from copies
            yield from alone
            return
        gone: set[Slot] = set()
        for slot in chain(copies, alone):
            gone.add(slot)
            yield slot
        mine = [slab for slab in slabs.occupied() if slab.owner == owner]
        left = [one for slab in mine for one in slab.slots.values() if one.tenant == tenant]
        yield from self._before_retired(left, spared, gone)

    def _before_retired(
        self, slots: Iterable[Slot], spared: Collection[bytes], gone: set[Slot]
    ) -> Iterator[Slot]:
        """Of these slots in DRAM those that nothing but what is in retired slabs keeps, the coldest
        first."""
        assert self._ssd is not None
        alone = [one for one in slots if may_go(one) and one.twin is None and one not in gone]
        coldest = sorted(alone, key=self._less_used.rank)
        return before_retired(self._index, self._ssd, coldest, spared, gone)

    def _of_ssd(
        self, slabs: Slabs, owner: Owner, tenant: str, spared: Collection[bytes], count: int
    ) -> Iterator[Slot]:
        """Before one that was used goes, what sleeps is woken: at first for `count`, and twice as
        many each time that more are asked for, since they may be very many."""
        given: set[Slot] = set()

        def coldest() -> list[Slot]:
            found = lost(slabs, self._index.coldest(owner, tenant, spared, Tier.SSD))
            return list(islice((one for one in found if one not in given), count))

        while True:
            some = coldest()
            unused = sum(map(self._index.unused, some))
            if unused < count and self._rouse(slabs, owner, tenant, count - unused):
                some = coldest()
            yield from some
            if len(some) < count:
                return  # what sleeps yet is left to the next call
            given.update(some)
            count *= 2

    def _rouse(self, slabs: Slabs, owner: Owner, tenant: str, count: int) -> bool:
        """Wake the oldest sleepers, as many as make room for `count`; whether there were any. Those
        in retired slabs make none. They may be very many: the rest is left to the next call."""
        woken, left = 0, count
        while left and woken < count + _PASSED_MAX:
            leaves = self._index.rouse(owner, tenant, left)
            if not leaves:
                break
            woken += len(leaves)
            left -= sum(not slabs.retired(slot) for slot in leaves)
        return woken > 0

    def _slabs(
        self,
        slabs: Slabs,
        owner: Owner,
        pay: dict[str, int],
        slack: int,
        count: int,
        taken: set[int],
    ) -> Iterator[Slab]:
        """Up to `count` slabs of other owners that can be emptied now, by their coldest blocks.

        Each tenant gives what it has left to `pay`, and the last time up to `slack` more.
        """
        if count <= 0 or not any(most > 0 for most in pay.values()):
            return
        if slabs.tier is Tier.SSD:
            for other, tenant in self._index.sleepers.places():
                if other != owner and pay.get(tenant, 0) > 0:
                    self._rouse(slabs, other, tenant, count)
        for slab in self._coldest_slabs(slabs, owner, taken, count):
            if slabs.tier is Tier.SSD:
                self._index.rouse_places(slab.offset, slab.offset + slabs.slab_bytes)
            cost = Counter(one.tenant for one in slab.slots.values())
            affordable = all(
                (left := pay.get(name, 0)) > 0 and slots * slab.slot_bytes <= left + slack
                for name, slots in cost.items()
            )
            if affordable and all(map(may_go, slab.slots.values())):
                for name, slots in cost.items():
                    pay[name] -= slots * slab.slot_bytes
                taken.add(slab.number)
                yield slab
                count -= 1
            if not count:
                return

    def _used_less(
        self,
        slabs: Slabs,
        owner: Owner,
        tenant: str,
        spared: Collection[bytes],
        gone: Collection[Slot],
        count: int,
    ) -> Iterator[Slab]:
        """Up to `count` slabs of others in which all is the tenant's and goes before any block of
        this owner's."""
        some = self._less_used.next(slabs, owner) if count else []
        own = self._of(slabs, owner, tenant, spared, 1 + len(gone)) if some else ()
        first = next((one for one in own if one not in gone), None)
        if first is not None:
            yield from islice(self._less_used.of(slabs, some, first), count)

    def _coldest_slabs(
        self, slabs: Slabs, owner: Owner, but: Collection[int], count: int
    ) -> Iterator[Slab]:
        """Those of other owners in service, without these, by their coldest blocks. On SSD `count`
        are found before one is given out and roused, since that changes what is gone through; then
        twice as many each time, and all is gone through again, with what was roused."""
        seen = set(but)
        if slabs.tier is not Tier.SSD:
            yield from self._slabs_of_others(slabs, owner, seen)
            return
        while some := list(islice(self._slabs_of_others(slabs, owner, seen), count)):
            yield from some
            count *= 2

    def _slabs_of_others(self, slabs: Slabs, owner: Owner, seen: set[int]) -> Iterator[Slab]:
        for here in self._of_others(slabs, owner):
            slab = slabs.slab_of(here)
            if not slab.retired and slab.number not in seen:
                seen.add(slab.number)
                yield slab

    def _of_others(self, slabs: Slabs, owner: Owner) -> Iterator[Slot]:
        """Slots of other owners in a tier, the coldest first; in DRAM those that are on SSD too."""
        if all(slab.owner == owner for slab in slabs.occupied()):
            return
        gone: set[Slot] = set()
        if slabs.tier is Tier.DRAM:
            for place in self._copied.places():
                for slot in self._copied.coldest(*place, ()) if place[0] != owner else ():
                    gone.add(slot)
                    yield slot
        for slot in self._index.coldest(lowest=slabs.tier):
            here = slot if slot.tier is slabs.tier else slot.twin
            assert here is not None, "a block that is not in this tier"
            if here.owner != owner:
                gone.add(here)
                yield here
        if slabs.tier is Tier.DRAM and self._ssd is not None and self._ssd.any_retired:
            others = [slab for slab in slabs.occupied() if slab.owner != owner]
            left = [one for slab in others for one in slab.slots.values()]
            yield from self._before_retired(left, (), gone)


def lost(slabs: Slabs, coldest: Iterable[Slot]) -> Iterator[Slot]:
    """Slots of the tier whose blocks are lost with them. `coldest` is as the index gives it: each
    block that is listed after all that stand behind it.

    One in a retired slab would make no room: it stays, and keeps no other.
    """
    stay: set[bytes] = set()  # blocks with something behind them that stays
    for slot in coldest:
        here = slot if slot.tier is slabs.tier else slot.twin
        assert here is not None, "a block that is not in this tier"
        if slabs.retired(here):
            continue
        if here.held or slot.key in stay:
            stay.add(slot.behind)
            continue
        yield here
