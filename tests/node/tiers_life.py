"""Blocks of three tenants in HBM, DRAM and SSD, moved about at random between full tiers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from kvstore.block import Miss, stored_keys
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.shares import FAIR, Share
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from kvstore.layout import SlotLayout
from kvstore.limits import HASH_BYTES
from kvstore.memory.arena import Arena
from kvstore.memory.strips import StripWriter
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place
from kvstore.telemetry import NODE, Telemetry
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, payload_of, prompt

T = TypeVar("T")
PLACES = {place.owner: place for place in (SMALL, LARGE)}
TENANTS = ["first", "second", "third"]
RETIRED = range(2 * SLAB)  # of SSD, at times


class TiersLife:
    """What a node's parts do with its blocks, in any order that they may do it in. With an even
    seed there is no HBM."""

    def __init__(self, seed: int) -> None:
        self.dice, self.seen = random.Random(seed), Counter[str]()
        arena = Arena.create(self.dice.choice([3, 5]) * SLAB, seed % 2 * 3 * SLAB)
        ssd = Slabs(self.dice.choice([4, 8]) * SLAB, SLAB, Tier.SSD)
        self.blocks = Blocks(arena, SLAB, Telemetry(NODE), ssd)
        self.filling: list[Slot] = []
        self.pinned: list[Slot] = []
        self.writes: list[tuple[Slot, Slot]] = []  # from DRAM to SSD
        self.reads: list[tuple[Slot, Slot]] = []  # to DRAM
        self.retired = False

    def run(self, steps: int) -> None:
        deeds = [
            *((self.fill, 8), (self.seal, 8), (self.give_up, 1), (self.use, 3), (self.remove, 1)),
            *((self.pin, 3), (self.unpin, 4), (self.begin_write, 4), (self.end_write, 4)),
            *((self.begin_read, 6), (self.end_read, 10), (self.rot, 1), (self.retire, 1)),
            *((self.grant, 1),),
        ]
        calls, weights = [deed for deed, _ in deeds], [weight for _, weight in deeds]
        for deed in self.dice.choices(calls, weights, k=steps):
            deed()
            self.blocks.check()

    def finish(self) -> None:
        """Everybody lets go, and all blocks go: nothing is left of anything."""
        blocks = self.blocks
        while self.filling:
            self.give_up()
        while self.pinned:
            self.unpin()
        while self.writes:
            self.end_write()
        while self.reads:
            self.end_read()
        blocks.check()
        assert not blocks.doomed and not blocks.filling
        blocks.drop_all([*blocks.index], Miss.REMOVED)
        blocks.check()
        assert not any(blocks.shares.used(tier) for tier in Tier)

    def fill(self) -> None:
        place, tenant, wanted = self._prompt()
        index, before = self.blocks.index, {slot.key: slot.tier for slot in self.blocks.index}
        spared = {one for key, parent, _ in wanted for one in (key, parent) if one in index}
        fresh = [one for one in wanted if one[0] not in index and self.dice.random() < 0.9]
        reach = self.dice.choice([Tier.DRAM, Tier.HBM])
        try:
            told = (fresh, tenant, spared, [0] * len(fresh), reach)
            taken = self.blocks.fill(place.owner, place.layout, *told)
        except Overloaded as error:
            self.seen[type(error).__name__] += 1
            now = {slot.key: slot.tier for slot in index}
            assert now == before, "a refusal cost somebody a block"
            return
        assert spared <= {slot.key for slot in index}, "a block went for one that is behind it"
        if any(slot.tier is Tier.DRAM for slot in taken):
            most = self.blocks.shares.granted.get(tenant, FAIR).bytes_max
            has = self.blocks.shares.used(Tier.DRAM)[tenant]
            assert most is None or has <= most, "a tenant passed its quota"
        self.seen["evicted"] += len(before) - len([*index])
        self.filling += taken

    def seal(self) -> None:
        if not self.filling:
            return
        owner = self.dice.choice(self.filling).owner
        some = [one for one in self.filling if one.owner == owner and self.dice.random() < 0.7]
        self.filling = [one for one in self.filling if one not in some]
        layout = PLACES[owner].layout
        for slot in some:
            writer = StripWriter(self.blocks.view, self.blocks.heads, slot, layout, layout.whole)
            writer.write(payload_of(slot, layout))
        sealed = self.blocks.seal_all(some, layout)
        self.blocks.settle_all(some)
        self.seen["sealed"] += sum(sealed)

    def give_up(self) -> None:
        if slot := self._taken(self.filling):
            self.blocks.doom(slot)
            self.blocks.settle(slot)

    def use(self) -> None:
        self.blocks.touch([key for key, _, _ in self._prompt()[2]])

    def remove(self) -> None:
        found = [self.blocks.index.held(key) for key, _, _ in reversed(self._prompt()[2])]
        self.blocks.drop_all([slot for slot in found if slot is not None], Miss.REMOVED)

    def pin(self) -> None:
        if slot := self._any([one for one in self.blocks.index if one.tier is not Tier.SSD]):
            slot.pins += 1
            self.pinned.append(slot)

    def unpin(self) -> None:
        if slot := self._taken(self.pinned):
            slot.pins -= 1
            self.blocks.settle(slot)

    def begin_write(self) -> None:
        written = {source for source, _ in self.writes}
        alone = [one for one in self.blocks.index if one.lowest is Tier.DRAM]
        if slot := self._any([one for one in alone if one not in written]):
            self._begin(self.writes, slot, self.blocks.between.begin_write)

    def end_write(self) -> None:
        if pair := self._taken(self.writes):
            stored = self.dice.random() < 0.9
            self.seen["stored"] += self.blocks.between.end_write(*pair, stored=stored)

    def begin_read(self) -> None:
        read = {source for source, _ in self.reads}
        away = [one for one in self.blocks.index if one.tier is not Tier.DRAM and one not in read]
        if slot := self._any(away):
            place = (slot.owner, slot.tenant, slot.origin)
            some = [one for one in away if (one.owner, one.tenant, one.origin) == place][:2]
            given = (PLACES[slot.owner].layout, {one.key for one in some})
            targets = self.blocks.between.begin_read(some, *given)
            self.reads += zip(some, targets, strict=False)
            self.seen["no room to move"] += len(targets) < len(some)

    def end_read(self) -> None:
        if pair := self._taken(self.reads):
            source, target = pair
            miss = Miss.DAMAGED if self.dice.random() < 0.1 else None
            came = self.blocks.between.end_read(source, target, miss)
            self.seen[f"from {source.tier.name}"] += came
            self.blocks.let_go(target)

    def rot(self) -> None:
        if slot := self._any([*self.blocks.index]):
            self.blocks.damaged(self.dice.choice([slot, slot.twin or slot]))

    def retire(self) -> None:
        ssd = self.blocks.ssd
        assert ssd is not None
        change = ssd.resume if self.retired else ssd.retire
        change(RETIRED.start, RETIRED.stop)
        self.retired = not self.retired

    def grant(self) -> None:
        most = self.dice.choice([None, SLAB, 2 * SLAB, 4 * SLAB])
        share = Share(self.dice.choice([0.5, 1.0, 4.0]), most)
        self.blocks.shares.granted = {self.dice.choice(TENANTS): share}

    def _begin(
        self,
        moves: list[tuple[Slot, Slot]],
        slot: Slot,
        begin: Callable[[Slot, SlotLayout], Slot],
    ) -> None:
        try:
            moves.append((slot, begin(slot, PLACES[slot.owner].layout)))
        except Overloaded:
            self.seen["no room to move"] += 1

    def _prompt(self) -> tuple[Place, str, list[tuple[bytes, bytes, int]]]:
        """Of one of a few, the first blocks: stored key, that of the block before, tokens."""
        place, tenant = self.dice.choice([*PLACES.values()]), self.dice.choice(TENANTS)
        blocks = prompt(place, self.dice.randint(1, 6) * TOKENS, 100 * self.dice.randrange(5))
        keys = stored_keys(tenant.encode().ljust(HASH_BYTES), *place.owner, blocks.hashes)
        parents = [b"", *keys[:-1]]
        return place, tenant, list(zip(keys, parents, blocks.tokens, strict=True))

    def _any(self, some: Sequence[T]) -> T | None:
        return self.dice.choice(some) if some else None

    def _taken(self, some: list[T]) -> T | None:
        return some.pop(self.dice.randrange(len(some))) if some else None
