"""The blocks of a node in both tiers: every slot's way from empty to sealed and back.

This is the only module that moves slots along the lifecycle, so what stands in memory (heads), in
the slab maps and in the index changes together. It knows nothing of callers and moves no payload.

The index has one slot for a block: the one in DRAM, where there is one. Its twin is the same block
on SSD; when the DRAM slot goes, the twin takes its place, and nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.room import Room
from kvstore.core.shares import Shares
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from kvstore.failpoint import failpoint
from kvstore.layout import SlotLayout
from kvstore.memory.arena import Arena
from kvstore.memory.heads import Heads
from kvstore.memory.strips import intact
from kvstore.telemetry import Counters


class Blocks:
    """Slots, their heads in memory, and the index of the sealed ones."""

    def __init__(
        self, arena: Arena, slab_bytes: int, counters: Counters, ssd: Slabs | None = None
    ) -> None:
        self.view = arena.view
        self.heads = Heads(self.view)
        self.slabs, self.ssd = Slabs(arena.size, slab_bytes), ssd
        self.index = Index()
        self.filling: dict[bytes, set[Slot]] = {}  # by stored key: prefills of one prompt share it
        self.doomed: set[Slot] = set()
        self.copied = Lanes(self.index, self.slabs)  # slots in DRAM of blocks that are on SSD too
        self.shares = Shares()
        self._room = Room(self.index, self.copied, self.shares)
        self.unsaid: set[tuple[bytes, int]] = set()  # records that are to go: key, offset of slot
        self.on_sealed: Callable[[Slot], None] = lambda slot: None
        self.on_used: Callable[[Slot], None] = lambda slot: None  # one that is in DRAM alone
        self.on_unheld: Callable[[], None] = lambda: None  # there may be room now
        self._counters = counters

    def fill(
        self,
        owner: Owner,
        layout: SlotLayout,
        wanted: list[tuple[bytes, bytes, int]],
        tenant: str,
        spared: Collection[bytes] = (),
        origin: int = 0,
    ) -> list[Slot]:
        """FILLING slots for (key, parent, tokens) triples: all of them, or `Overloaded`.

        Blocks of `spared` keys are not evicted for these.
        """
        self._make_room(self.slabs, owner, tenant, layout, len(wanted), spared)
        taken: list[Slot] = []
        for key, parent, tokens in wanted:
            slot = self.slabs.take(owner, layout.slot_bytes)
            assert slot is not None, "room was made for every block"
            slot.move(State.FILLING)
            slot.key, slot.parent, slot.tokens, slot.tenant = key, parent, tokens, tenant
            slot.root, slot.origin, slot.short = b"", origin, tokens < layout.block_tokens
            self.shares.take(Tier.DRAM, tenant, layout.slot_bytes)
            self.heads.fill(slot, layout)
            self.filling.setdefault(key, set()).add(slot)
            taken.append(slot)
        return taken

    def seal(self, slot: Slot, layout: SlotLayout) -> bool:
        """Make a wholly written block readable; False if another with its key was first."""
        if slot.key in self.index:
            self.doom(slot)
            self._counters.add("duplicate_blocks")
            return False
        slot.root = self.heads.root(slot, layout)
        slot.move(State.SEALED)
        self._filled(slot)
        self.heads.seal(slot)
        self.index.add(slot)
        self._counters.add("sealed_blocks")
        self._counters.add("sealed_bytes", layout.block_bytes(slot.tokens))
        self.on_sealed(slot)
        return True

    def doom(self, slot: Slot) -> None:
        """Take an unsealed block out of the world; its memory stays until nobody holds it."""
        if slot.state is State.FILLING and slot.tier is Tier.DRAM:
            self._filled(slot)
        slot.move(State.DOOMED)
        self._mark(slot)
        self.doomed.add(slot)

    def drop(self, slot: Slot, why: Miss) -> None:
        """Forget a sealed block in every tier; memory stays until nobody holds it."""
        assert self.index.held(slot.key) is slot, "only the slot that the index has is dropped"
        self.index.drop(slot.key, why)
        twin, slot.twin = slot.twin, None
        if twin is not None:
            twin.twin = None
            self._leave(twin)
        self._leave(slot)

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
        self._leave(slot)

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

    def touch(self, keys: Sequence[bytes]) -> None:
        """These blocks are used now: the first of a prompt last, so that it stays the longest."""
        self.index.touch(keys)
        for key in reversed(keys):
            slot = self.index.held(key)
            if slot is not None and slot.stored:
                self.copied.touch(slot)
            elif slot is not None and slot.listed:
                self.on_used(slot)

    def settle(self, slot: Slot) -> None:
        """Free a doomed slot that nobody holds any more."""
        if not slot.held:
            self.on_unheld()
        if slot.state is State.DOOMED and not slot.held:
            self.doomed.discard(slot)
            slot.move(State.EMPTY)
            slot.key = slot.parent = slot.root = b""
            slabs = self._slabs_of(slot)
            self.shares.give(slot.tier, slot.tenant, slabs.slab_of(slot).slot_bytes)
            slabs.give(slot)
            self._mark(slot)

    # Between the tiers. Whoever moves the bytes calls the first of a pair before and the second
    # after; in between both slots are held, and the block may have been dropped.

    def begin_write(self, slot: Slot, layout: SlotLayout) -> Slot:
        """A slot on SSD for a copy of a sealed block, or `Overloaded`."""
        assert self.ssd is not None and slot.state is State.SEALED and slot.twin is None
        self._make_room(self.ssd, slot.owner, slot.tenant, layout, 1, (slot.key,))
        target = self.ssd.take(slot.owner, layout.slot_bytes)
        assert target is not None, "room was made for it"
        target.move(State.FILLING)
        _copy_words(slot, target)
        self.shares.take(Tier.SSD, slot.tenant, layout.slot_bytes)
        slot.moves += 1
        target.moves += 1
        return target

    def end_write(self, slot: Slot, target: Slot, *, stored: bool) -> bool:
        """The copy is durable, or never will be. Whether the block now has it."""
        slot.moves -= 1
        target.moves -= 1
        whole = stored and self.index.held(slot.key) is slot
        if whole:
            target.move(State.SEALED)
            slot.twin, target.twin = target, slot
            self.copied.add(slot)
            self.index.moved(slot)
        else:
            if stored:
                self.unsaid.add((target.key, target.offset))
            self.doom(target)
            self.settle(target)
        self.settle(slot)
        return whole

    def begin_read(self, slot: Slot, layout: SlotLayout, spared: Collection[bytes]) -> Slot:
        """A slot in DRAM for a block that is on SSD alone, or `Overloaded`. Others are spared."""
        assert slot.tier is Tier.SSD and slot.twin is None and slot.state is State.SEALED
        slot.moves += 1  # before room is made: it must not go for itself
        try:
            wanted = [(slot.key, slot.parent, slot.tokens)]
            target = self.fill(slot.owner, layout, wanted, slot.tenant, spared, slot.origin)[0]
        except Overloaded:
            slot.moves -= 1
            self.settle(slot)
            raise
        target.moves += 1
        return target

    def end_read(self, slot: Slot, target: Slot, *, intact: bool) -> bool:
        """The bytes are in DRAM and verified, or are not to be had. Whether they may be read.

        The target stays held for its reader, who calls `let_go`.
        """
        slot.moves -= 1
        wanted = self.index.held(slot.key) is slot
        if wanted and intact:
            target.root = slot.root
            target.move(State.SEALED)
            self._filled(target)
            self.heads.seal(target)
            self.index.replace(target)
            slot.twin, target.twin = target, slot
            self.copied.add(target)
            self._counters.add("promoted_blocks")
        else:
            self.doom(target)
            if wanted:
                self._counters.add("damaged_blocks")
                self.drop(slot, Miss.DAMAGED)
        self.settle(slot)
        return wanted and intact

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
        """Look at a sealed block's bytes; drop it, as a counted miss, if they are damaged."""
        if slot.state is not State.SEALED or intact(self.view, self.heads, slot, layout):
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

    def check(self) -> None:
        self.slabs.check()
        self.index.check()
        tiers = [self.slabs] + ([self.ssd] if self.ssd is not None else [])
        slots = [slot for tier in tiers for slab in tier.occupied() for slot in slab.slots.values()]
        for slot in slots:
            slot.check()
            assert self._slabs_of(slot).at(slot.offset) is slot, "a slot is not found at its offset"
            if slot.tier is Tier.DRAM:
                filling = slot in self.filling.get(slot.key, ())
                assert filling == (slot.state is State.FILLING)
            assert (slot in self.doomed) == (slot.state is State.DOOMED)
            if slot.state is State.DOOMED:
                assert slot.held, "a doomed slot that nobody holds was not freed"
            if slot.state is State.SEALED:
                held = self.index.held(slot.key)
                assert held in (slot, slot.twin), "sealed but not in the index"
                assert slot.twin is None or (held is not None and held.tier is Tier.DRAM)
            if slot.state is not State.EMPTY and slot.tier is Tier.DRAM:
                self.heads.check(slot)
        known = {id(slot) for slot in slots}
        named = [*self.index, *self.doomed, *(s for some in self.filling.values() for s in some)]
        assert all(id(slot) in known for slot in named), "a slot of a slab that changed owner"
        assert all(self.filling.values()), "a key that nobody is filling"
        twins = sum(slot.twin is not None for slot in self.index)
        assert set(self.copied) == {slot for slot in self.index if slot.twin is not None}
        self._check_shares(slots)
        copies = sum(slot.tier is Tier.SSD and slot.state is State.FILLING for slot in slots)
        used = sum(slab.used for tier in tiers for slab in tier.occupied())
        known_used = len(named) + twins + copies + len(self.index.sleepers)
        assert used == known_used, "a free slot is not empty, or an empty one is not free"

    def _check_shares(self, awake: Sequence[Slot]) -> None:
        for tier in Tier:
            has = Counter[str](self.index.sleepers.bytes_of() if tier is Tier.SSD else {})
            for slot in awake:
                if slot.tier is tier:
                    has[slot.tenant] += self._slabs_of(slot).slab_of(slot).slot_bytes
            assert +has == self.shares.used(tier), "a tenant's bytes are miscounted"

    def _filled(self, slot: Slot) -> None:
        self.filling[slot.key].discard(slot)
        if not self.filling[slot.key]:
            del self.filling[slot.key]

    def _make_room(
        self,
        slabs: Slabs,
        owner: Owner,
        tenant: str,
        layout: SlotLayout,
        wanted: int,
        spared: Collection[bytes],
    ) -> None:
        try:
            size = layout.slot_bytes
            chosen = self._room.choose(slabs, owner, tenant, size, wanted, spared)
        except Overloaded:
            self._counters.add("overloaded")
            raise
        for slot in chosen:
            if slot.tier is Tier.DRAM and slot.twin is not None:
                self.leave_tier(slot)
                continue
            held = self.index.held(slot.key)
            assert held is not None, "a sealed block that the index does not hold"
            self._counters.add("evicted_blocks")
            self.drop(held, Miss.EVICTED)
            failpoint("evict.after_drop")

    def _leave(self, slot: Slot) -> None:
        self.copied.discard(slot)
        if slot.tier is Tier.SSD:
            self.unsaid.add((slot.key, slot.offset))
        self.doom(slot)
        self.settle(slot)

    def _mark(self, slot: Slot) -> None:
        if slot.tier is Tier.DRAM:
            self.heads.mark(slot)

    def _slabs_of(self, slot: Slot) -> Slabs:
        if slot.tier is Tier.DRAM:
            return self.slabs
        assert self.ssd is not None, "a slot on an SSD that is not there"
        return self.ssd

    def most_recent(self, limit: int) -> list[Slot]:
        return list(islice(self.index.recent(), limit))


def _copy_words(source: Slot, target: Slot) -> None:
    target.key, target.parent, target.tenant = source.key, source.parent, source.tenant
    target.tokens, target.origin, target.root = source.tokens, source.origin, source.root
