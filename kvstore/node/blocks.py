"""The blocks of a node in all tiers: every slot's way from empty to sealed and back.

With `between.py`, which says what a move from tier to tier changes, and `arriving.py`, which says
it of what other nodes bring, this is the only module that moves slots along the lifecycle: what
stands in memory (heads), in the slab maps and in the index changes together. It knows nothing of
callers and moves no payload.

The index has one slot for a block: the one in HBM or DRAM, where there is one. The twin of one in
DRAM is the same block on SSD; when the DRAM slot goes, the twin takes its place, and nothing is
lost. A block in HBM is nowhere else on the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import compress, groupby, islice

from kvstore.block import Miss
from kvstore.core.carried import Ledger
from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Owner, Slot, State, Tier, move_all
from kvstore.core.room import Room
from kvstore.core.shares import Shares
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from kvstore.failpoint import failpoint
from kvstore.layout import SlotLayout
from kvstore.memory.arena import Arena
from kvstore.memory.heads import Heads
from kvstore.memory.strips import intact
from kvstore.node.arriving import Arriving
from kvstore.node.between import Between
from kvstore.node.consistency import check
from kvstore.telemetry import Telemetry


class Blocks:
    """Slots, their heads in memory, and the index of the sealed ones."""

    def __init__(
        self, arena: Arena, slab_bytes: int, counters: Telemetry, ssd: Slabs | None = None
    ) -> None:
        self.view = arena.view
        self.heads = Heads(self.view)
        on = arena.spread.of_slabs(slab_bytes)
        self.slabs, self.ssd = Slabs(arena.size, slab_bytes, numa=on), ssd
        self.hbm: Slabs | None = None
        if arena.hbm_bytes:
            self.hbm = Slabs(arena.hbm_bytes, slab_bytes, Tier.HBM, first=arena.size)
        self.index = Index()
        self.filling: dict[bytes, int] = {}  # slots by stored key: prefills of one prompt share it
        self.doomed: set[Slot] = set()
        self.copied = Lanes(self.index, self.slabs)  # slots in DRAM of blocks that are on SSD too
        self.shares = Shares()
        self.lent = Lanes(self.index, self.hbm or self.slabs)  # sealed slots in HBM
        self.between, self.arriving = Between(self), Arriving(self)
        self.carried = Ledger()  # what came from other nodes and from SSD
        self._room = Room(self.index, self.copied, self.shares, ssd)
        self.unsaid: set[tuple[bytes, int]] = set()  # records that are to go: key, offset of slot
        self.on_sealed: Callable[[Slot], None] = lambda slot: None
        self.on_used: Callable[[Slot], None] = lambda slot: None  # one that is in DRAM alone
        self.on_unheld: Callable[[], None] = lambda: None  # there may be room now
        self.on_lent: Callable[[], None] = lambda: None  # more is in HBM, or may go from there
        self._counters = counters

    def fill(
        self,
        owner: Owner,
        layout: SlotLayout,
        wanted: Sequence[tuple[bytes, bytes, int]],
        tenant: str,
        spared: Collection[bytes],
        origins: Sequence[int],
        reach: Tier = Tier.DRAM,
        near: int | None = None,
    ) -> list[Slot]:
        """FILLING slots for (key, parent, tokens) triples and their origins, parallel lists: all
        of them, or `Overloaded`.

        Blocks of `spared` keys are not evicted for these. A writer that reaches HBM is given what
        is free there, for a prompt's start, which others share. `near`: the others' NUMA node.
        """
        count, size = len(wanted), layout.slot_bytes
        above = self.free_in_hbm(owner, tenant, size, count, reach)
        self._make_room(self.slabs, owner, tenant, layout, count - above, spared)
        taken = self.hbm.take_all(owner, size, above) if self.hbm and above else []
        taken += self.slabs.take_all(owner, size, count - above, near)
        assert len(taken) == count, "room was made for every block"
        move_all(taken, State.FILLING)
        full, filling = layout.block_tokens, self.filling
        for slot, (key, parent, tokens), origin in zip(taken, wanted, origins, strict=True):
            slot.key, slot.parent, slot.tokens, slot.tenant = key, parent, tokens, tenant
            slot.origin, slot.short = origin, tokens < full
            filling[key] = filling.get(key, 0) + 1
        if taken:
            for tier, some in ((Tier.HBM, above), (Tier.DRAM, count - above)):
                if some:
                    self.shares.take(tier, tenant, size * some)
            self.heads.fill_all(taken, layout)
        return taken

    def fill_first(
        self,
        owner: Owner,
        layout: SlotLayout,
        wanted: Sequence[tuple[bytes, bytes, int]],
        tenant: str,
        spared: Collection[bytes],
        origins: Sequence[int],
    ) -> list[Slot]:
        """The same in DRAM for the first of these, as many as there is room for."""
        taken: list[Slot] = []
        # To look for room is to pass all that is held, so it is looked for at once, or for few
        # pieces; but where there is none for all, first whether there is any.
        most = size = len(wanted)
        while size and len(taken) < len(wanted):
            some = slice(len(taken), len(taken) + size)
            given = (wanted[some], tenant, spared, origins[some])
            try:
                taken += self.fill(owner, layout, *given)
                size = most
            except Overloaded:
                most = len(given[0]) // 2
                size = most if taken else min(1, most)
        if len(taken) < len(wanted):
            self._counters.add("overloaded")
        return taken

    def seal_all(self, slots: Sequence[Slot], layout: SlotLayout) -> list[bool]:
        """Make wholly written blocks readable; False where another with its key was first."""
        keys = [slot.key for slot in slots]
        first = dict(zip(keys[::-1], slots[::-1], strict=True))
        for key in self.index.having(keys):
            del first[key]
        fresh = [first.get(key) is slot for key, slot in zip(keys, slots, strict=True)]
        for slot in [one for one, new in zip(slots, fresh, strict=True) if not new]:
            self.doom(slot)
            self._counters.add("duplicate_blocks")
        sealed = [*compress(slots, fresh)]
        if not sealed:
            return fresh
        self.heads.take_roots(sealed, layout)
        self._filled([slot.key for slot in sealed])
        move_all(sealed, State.SEALED)
        self.heads.seal_all(sealed)
        self.index.add_all(sealed)
        self._counters.add("sealed_blocks", len(sealed))
        sizes = Counter([slot.tokens for slot in sealed]).items()
        self._counters.add("sealed_bytes", sum(layout.block_bytes(one) * n for one, n in sizes))
        for slot in sealed if self.ssd is not None else ():
            if slot.tier is Tier.DRAM:
                self.on_sealed(slot)
        if self.hbm is not None:
            self._sealed_in_hbm([slot for slot in sealed if slot.tier is Tier.HBM])
        return fresh

    def _sealed_in_hbm(self, slots: Sequence[Slot]) -> None:
        for slot in reversed(slots):  # a prompt's start is to stay the longest
            self.lent.add(slot)
        if slots:
            self.on_lent()

    def doom(self, slot: Slot) -> None:
        """Take an unsealed block out of the world; its memory stays until nobody holds it."""
        if slot.state is State.FILLING and slot.tier is not Tier.SSD:
            self._filled([slot.key])
        slot.move(State.DOOMED)
        if slot.tier is not Tier.SSD:
            self.heads.mark(slot)
        self.doomed.add(slot)

    def drop(self, slot: Slot, why: Miss) -> None:
        """Forget a sealed block in every tier; memory stays until nobody holds it."""
        self.drop_all([slot], why)

    def drop_all(self, slots: Sequence[Slot], why: Miss) -> None:
        """The same for each of these, in this order."""
        assert all(self.index.held(one.key) is one for one in slots), "not the one in the index"
        self.index.drop_all(slots, why)
        twins = [slot.twin for slot in slots if slot.twin is not None]
        for slot in (*slots, *twins):
            slot.twin = None
        self._leave([*twins, *slots])

    def leave_tier(self, slot: Slot) -> None:
        """Give up one of a block's two copies; the other one stands for it from now on."""
        twin = slot.twin
        assert twin is not None, "the block is in no other tier"
        slot.twin = twin.twin = None
        if self.index.held(slot.key) is slot:
            self.index.replace(twin)
        if twin.tier is Tier.DRAM:
            self.copied.discard(twin)
            self.index.moved(twin)
        self._leave([slot])

    @property
    def alone(self) -> float:
        """Share of DRAM in use whose blocks would be lost with their places."""
        used = sum(self.shares.used(Tier.DRAM).values())
        return (used - self.copied.bytes) / self.slabs.capacity_bytes

    def displaced(self, slot: Slot) -> float | None:
        """Worth of what a copy of the block would displace on SSD; None if there is room."""
        assert self.ssd is not None
        size = self.slabs.slab_of(slot).slot_bytes
        gone = self._room.first(self.ssd, slot.owner, slot.tenant, size, (slot.key,))
        return None if gone is None else self.index.worth(gone)[0]

    def would_lose(self, owner: Owner, tenant: str, layout: SlotLayout) -> float | None:
        """Worth of what one more block in DRAM would cost the node; None if it would be nothing."""
        gone = self._room.first(self.slabs, owner, tenant, layout.slot_bytes, ())
        return None if gone is None or gone.twin is not None else self.index.worth(gone)[0]

    def touch(self, keys: Sequence[bytes]) -> None:
        """These blocks are used now: the first of a prompt last, so that it stays the longest."""
        touched = self.index.touch(keys)
        for slot in touched if self.ssd is not None or self.hbm is not None else ():
            if slot.lowest is Tier.SSD:
                self.copied.touch(slot)
            elif slot.lowest is Tier.HBM:
                self.lent.touch(slot)
            elif slot.listed:
                self.on_used(slot)

    def settle(self, slot: Slot) -> None:
        """Free a doomed slot that nobody holds any more."""
        self.settle_all([slot])

    def settle_all(self, slots: Sequence[Slot]) -> None:
        """The same for each of these."""
        free = [slot for slot in slots if not (slot.pins or slot.windows or slot.moves)]
        if free:
            self.on_unheld()
        if self.hbm is not None and any(slot.tier is Tier.HBM for slot in free):
            self.on_lent()
        # One that was held twice by whoever lets go stands here twice.
        doomed = dict.fromkeys([slot for slot in free if slot.state is State.DOOMED])
        for _, some in groupby(doomed, lambda slot: slot.tier):
            self._free(list(some))

    def _free(self, slots: Sequence[Slot]) -> None:
        """Doomed slots of one tier, which nobody holds."""
        tier, slabs = slots[0].tier, self.slabs_of(slots[0])
        self.doomed.difference_update(slots)
        move_all(slots, State.EMPTY)
        sizes = Counter([(slot.tenant, slabs.slab_of(slot).slot_bytes) for slot in slots])
        for (tenant, size), count in sizes.items():
            self.shares.give(tier, tenant, size * count)
        for slot in slots:
            slot.key = slot.parent = slot.after = slot.root = b""
        slabs.give_all(slots)
        if tier is not Tier.SSD:
            self.heads.mark_all(slots)
        if tier is Tier.HBM:
            self.between.let_go_above(slots)

    def take_on_ssd(self, slot: Slot, layout: SlotLayout) -> Slot:
        """An EMPTY slot there for a copy of the block, or `Overloaded`."""
        assert self.ssd is not None
        try:
            self._make_room(self.ssd, slot.owner, slot.tenant, layout, 1, (slot.key,))
        except Overloaded:
            self._counters.add("overloaded")
            raise
        target = self.ssd.take(slot.owner, layout.slot_bytes)
        assert target is not None, "room was made for it"
        self.shares.take(Tier.SSD, slot.tenant, layout.slot_bytes)
        return target

    def stand_in(self, slot: Slot, target: Slot) -> None:
        """A filled slot in DRAM is the block's from now on, which was in no slot there before."""
        target.move(State.SEALED)
        self._filled([target.key])
        self.heads.seal(target)
        if slot.tier is Tier.SSD:
            slot.twin, target.twin = target, slot
            self.index.replace(target)
            self.copied.add(target)
            self._counters.add("promoted_blocks")
        else:
            self.index.replace(target)
            self.index.moved(target)
            self._leave([slot])
            self._counters.add("demoted_blocks")
            self.on_sealed(target)

    def let_go(self, slot: Slot) -> None:
        slot.moves -= 1
        self.settle(slot)

    def find(self, key: bytes) -> Slot | Miss:
        """The listed slot of a key, or why there is none."""
        slot = self.index.get(key)
        if slot is not None:
            return slot
        return Miss.UNSEALED if key in self.filling else self.index.why_not(key)

    def examine(self, slot: Slot, layout: SlotLayout) -> bool:
        """Look at a sealed block's bytes; drop it, as a counted miss, if they are damaged.

        Those in HBM the node does not look at: whoever doubts them is believed.
        """
        if slot.state is not State.SEALED:
            return True
        if slot.tier is not Tier.HBM and intact(self.view, self.heads, slot, layout):
            return True
        self.damaged(slot)
        return False

    def damaged(self, slot: Slot) -> None:
        """A copy of a sealed block is not what was sealed: it goes, and the other one stays."""
        self._counters.add("damaged_blocks")
        other = slot.twin
        if other is None:
            self.drop(slot, Miss.DAMAGED)
            return
        self.leave_tier(slot)
        if other.tier is Tier.DRAM:
            self.on_sealed(other)  # it is to be on SSD again

    def lose(self, slot: Slot, why: Miss) -> None:
        """A block is not where its record says, and is nowhere else."""
        self._counters.add("damaged_blocks" if why is Miss.DAMAGED else "evicted_blocks")
        self.drop(slot, why)

    def check(self) -> None:
        check(self)

    def _filled(self, keys: Sequence[bytes]) -> None:
        """One slot of each of these fills no more."""
        filling = self.filling
        for key in keys:
            if others := filling.pop(key) - 1:
                filling[key] = others

    def _make_room(
        self,
        slabs: Slabs,
        owner: Owner,
        tenant: str,
        layout: SlotLayout,
        wanted: int,
        spared: Collection[bytes],
    ) -> None:
        chosen = self._room.choose(slabs, owner, tenant, layout.slot_bytes, wanted, spared)
        gone: list[Slot] = []  # from the node: they go together
        for slot in chosen:
            assert not slot.held, "what is held makes no room"
            if slot.tier is Tier.DRAM and slot.twin is not None:
                self.leave_tier(slot)
                continue
            held = self.index.held(slot.key)
            assert held is not None, "a sealed block that the index does not hold"
            gone.append(held)
        if gone:
            self.drop_all(gone, Miss.EVICTED)
        self.evicted(len(gone))

    def evicted(self, count: int) -> None:
        """So many blocks made room and are gone."""
        self._counters.add("evicted_blocks", count)
        failpoint("evict.after_drop", count)

    def _leave(self, slots: Sequence[Slot]) -> None:
        """Sealed slots that stand for no block any more."""
        for slot in slots:
            self.copied.discard(slot)
            if slot.tier is Tier.HBM:
                self.lent.discard(slot)
            if slot.tier is Tier.SSD:
                self.unsaid.add((slot.key, slot.offset))
        move_all(slots, State.DOOMED)
        held = [slot for slot in slots if slot.held]
        self.doomed.update(held)
        self.heads.mark_all([slot for slot in held if slot.tier is not Tier.SSD])
        self.settle_all(slots)

    def slabs_of(self, slot: Slot) -> Slabs:
        found = {Tier.DRAM: self.slabs, Tier.SSD: self.ssd, Tier.HBM: self.hbm}[slot.tier]
        assert found is not None, "a slot of a tier that is not there"
        return found

    @property
    def in_memory(self) -> list[Slabs]:
        """Those whose slots have heads in the arena."""
        return [self.slabs] if self.hbm is None else [self.slabs, self.hbm]

    def free_in_hbm(self, owner: Owner, tenant: str, size: int, most: int, reach: Tier) -> int:
        """How many slots of so many bytes a tenant that reaches it has there now, up to `most`."""
        if self.hbm is None or reach is not Tier.HBM:
            return 0
        room = min(most, self.hbm.room(owner, size))
        over = self.shares.excess(Tier.HBM, tenant, room * size)
        return max(0, room - max(0, -(-over // size)))

    def most_recent(self, limit: int) -> list[bytes]:
        return list(islice(self.index.recent(), limit))
