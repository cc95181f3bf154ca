"""The blocks in a node's arena: every slot's way from empty to sealed and back.

This is the only module that moves slots along the lifecycle, so what stands in memory (heads), in
the slab map and in the index changes together. It knows nothing of callers.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Owner, Slot, State
from kvstore.core.slabs import Slab, Slabs
from kvstore.errors import Overloaded
from kvstore.layout import SlotLayout
from kvstore.memory.arena import Arena
from kvstore.memory.heads import Heads
from kvstore.memory.strips import intact
from kvstore.telemetry import Counters

RETRY_MS = 50  # when it may be worth asking a full pool again


class Blocks:
    """Slots, their heads in memory, and the index of the sealed ones."""

    def __init__(self, arena: Arena, slab_bytes: int, counters: Counters) -> None:
        self.view = arena.view
        self.heads = Heads(self.view)
        self.slabs = Slabs(arena.size, slab_bytes)
        self.index = Index()
        self.filling: dict[bytes, set[Slot]] = {}  # by stored key: prefills of one prompt share it
        self.doomed: set[Slot] = set()
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
        self._make_room(owner, layout, len(wanted), spared)
        taken: list[Slot] = []
        for key, parent, tokens in wanted:
            slot = self.slabs.take(owner, layout.slot_bytes)
            assert slot is not None, "room was made for every block"
            slot.move(State.FILLING)
            slot.key, slot.parent, slot.tokens, slot.tenant = key, parent, tokens, tenant
            slot.root, slot.origin = b"", origin
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
        return True

    def doom(self, slot: Slot) -> None:
        """Take an unsealed block out of the world; its memory stays until nobody holds it."""
        if slot.state is State.FILLING:
            self._filled(slot)
        slot.move(State.DOOMED)
        self.heads.mark(slot)
        self.doomed.add(slot)

    def drop(self, slot: Slot, why: Miss) -> None:
        """Forget a sealed block; its memory stays until nobody holds it."""
        self.index.drop(slot.key, why)
        self.doom(slot)
        self.settle(slot)

    def settle(self, slot: Slot) -> None:
        """Free a doomed slot that nobody holds any more."""
        if slot.state is State.DOOMED and not slot.held:
            self.doomed.discard(slot)
            slot.move(State.EMPTY)
            slot.key = slot.parent = slot.root = b""
            self.slabs.give(slot)
            self.heads.mark(slot)

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
        self._counters.add("damaged_blocks")
        self.drop(slot, Miss.DAMAGED)
        return False

    def check(self) -> None:
        self.slabs.check()
        self.index.check()
        slots = [slot for slab in self.slabs.occupied() for slot in slab.slots]
        for slot in slots:
            slot.check()
            assert self.slabs.at(slot.offset) is slot, "a slot is not found at its offset"
            assert (slot in self.filling.get(slot.key, ())) == (slot.state is State.FILLING)
            assert (slot in self.doomed) == (slot.state is State.DOOMED)
            if slot.state is State.DOOMED:
                assert slot.held, "a doomed slot that nobody holds was not freed"
            if slot.state is State.SEALED:
                assert self.index.held(slot.key) is slot, "sealed but not in the index"
            if slot.state is not State.EMPTY:
                self.heads.check(slot)
        known = {id(slot) for slot in slots}
        named = [*self.index, *self.doomed, *(s for some in self.filling.values() for s in some)]
        assert all(id(slot) in known for slot in named), "a slot of a slab that changed owner"
        assert all(self.filling.values()), "a key that nobody is filling"
        used = sum(slab.used for slab in self.slabs.occupied())
        assert used == len(named), "a free slot is not empty, or an empty one is not free"

    def _filled(self, slot: Slot) -> None:
        self.filling[slot.key].discard(slot)
        if not self.filling[slot.key]:
            del self.filling[slot.key]

    def _make_room(
        self, owner: Owner, layout: SlotLayout, wanted: int, spared: Collection[bytes]
    ) -> None:
        """Evict the owner's coldest blocks, or else empty the coldest slabs of other owners.

        All are chosen before one goes: a call that cannot be served costs nobody a block.
        """
        short = wanted - self.slabs.room(owner, layout.slot_bytes)
        if short <= 0:
            return
        per_slab = self.slabs.slots_in_slab(layout.slot_bytes)
        victims = list(islice(self.index.coldest(owner, spared), short))
        slabs = self._coldest_slabs(owner, -(-(short - len(victims)) // per_slab))
        if len(victims) + per_slab * len(slabs) < short:
            self._counters.add("overloaded")
            raise Overloaded(
                f"no room for {wanted} blocks of {layout.slot_bytes} bytes: blocks that "
                "are being written or are pinned fill the pool",
                RETRY_MS,
            )
        victims += [s for slab in slabs for s in slab.slots if s.state is State.SEALED]
        for slot in victims:
            self._evict(slot)

    def _coldest_slabs(self, owner: Owner, count: int) -> list[Slab]:
        """Up to `count` slabs of other owners that can be emptied now, by their coldest blocks."""
        if not count:
            return []
        movable = {
            slot.number: slab
            for slab in self.slabs.occupied()
            if slab.slots[0].owner != owner
            and all(s.state in (State.SEALED, State.EMPTY) and not s.held for s in slab.slots)
            for slot in slab.slots
        }
        found = {
            movable[s.number].number: movable[s.number]
            for s in self.index.coldest()
            if s.number in movable
        }
        return list(found.values())[:count]

    def _evict(self, slot: Slot) -> None:
        self._counters.add("evicted_blocks")
        self.drop(slot, Miss.EVICTED)

    def most_recent(self, limit: int) -> list[Slot]:
        return list(islice(self.index.recent(), limit))
