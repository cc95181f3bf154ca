"""A store with all its parts real: a memfd of a few hundred KiB, two tenants, two namespaces."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvstore.block import Chain, Miss, chain
from kvstore.clock import SimClock
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.spread import ALIKE, Spread
from kvstore.layout import Fragment, SlotLayout
from kvstore.memory.arena import Arena
from kvstore.memory.strips import StripWriter, chunks
from kvstore.node.blocks import Blocks
from kvstore.node.handles import Handles
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session, Sessions
from kvstore.node.store import Reserved, Store
from kvstore.spec import KVGroup, KVSpec
from kvstore.telemetry import NODE, Telemetry

TOKENS = 4
SLAB = 32 * 1024
SECRETS = {"default": b"d" * 32, "other": b"o" * 32}


class Known(dict[str, bytes]):
    """The tenants that a node knows: one once a test names it. Who is alone may hold everything."""

    def get(self, tenant: str, default: Any = None) -> Any:
        if tenant in SECRETS:
            self[tenant] = SECRETS[tenant]
        return super().get(tenant, default)


def place_of(model: str, layers: int, heads: int, head_dim: int) -> Place:
    group = KVGroup(tuple(range(layers)), heads, head_dim, TOKENS)
    spec = KVSpec(model, "r0", "float16", (group,))
    return Place((spec.digest, 0), SlotLayout.of(spec, 0), spec.dtype)


SMALL = place_of("small", layers=2, heads=2, head_dim=8)  # 8 KiB a slot: 4 in a slab
LARGE = place_of("large", layers=3, heads=1, head_dim=128)  # 12 KiB: 2 in a slab, and 8 KiB left


def prompt(place: Place, tokens: int, start: int = 0) -> Chain:
    """The chain of a prompt of consecutive token ids from `start`."""
    return chain(place.owner[0], place.owner[1], range(start, start + tokens), TOKENS)


def triples(blocks: Chain, first: int = 0, last: int | None = None) -> list[tuple[Any, Any, Any]]:
    some = range(len(blocks))[first:last]
    return [(blocks.hashes[i], blocks.parent(i), blocks.tokens[i]) for i in some]


def payload_of(slot: Slot, layout: SlotLayout) -> bytes:
    """What the writer of this generation of the slot has to say."""
    return np.random.default_rng(slot.generation).bytes(layout.block_bytes(slot.tokens))


class Rig:
    """A node's store and its callers."""

    def __init__(self, slabs: int = 4, hbm_slabs: int = 0, spread: Spread = ALIKE) -> None:
        self.clock, self.counters = SimClock(), Telemetry(NODE)
        self.arena = Arena.create(slabs * SLAB, hbm_slabs * SLAB)
        self.arena.spread = spread  # as on a kernel that heeds it
        self.blocks = Blocks(self.arena, SLAB, self.counters)
        self.handles = Handles(epoch=1)
        self.sessions = Sessions()
        self.store = Store(self.blocks, self.handles, self.clock, Known(), self.counters)

    @property
    def following(self) -> tuple[Any, ...]:
        """What of it `Follow` is given, behind its blocks, its arena and the others."""
        return self.store.claims, self.store.forgone, self.clock, self.counters

    def session(self, tenant: str = "default", mapped: bool = False) -> Session:
        session = self.sessions.begin(tenant, "test")
        session.mappings += mapped
        return session

    def end(self, session: Session) -> None:
        self.sessions.end(session)
        self.store.end(session)

    def process_gone(self, session: Session) -> None:
        session.mappings = 0
        self.store.gone(session)

    def pass_time(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))

    def write(self, slot: Slot, place: Place, fragment: Fragment | None = None) -> None:
        """Lay in the fragment of the payload that this generation of the slot is to have."""
        fragment, layout = fragment or place.layout.whole, place.layout
        data, size = payload_of(slot, layout), slot.tokens * layout.token_bytes
        writer = StripWriter(self.blocks.view, self.blocks.heads, slot, layout, fragment)
        for layer in range(fragment.layer_first, fragment.layer_first + fragment.layers):
            at = (layer * layout.kv_heads + fragment.head_first) * size
            writer.write(data[at : at + fragment.heads * size])
        assert writer.missing == 0

    def reserve(
        self,
        session: Session,
        place: Place,
        blocks: Chain,
        first: int = 0,
        last: int | None = None,
        reach: Tier = Tier.DRAM,
    ) -> list[Reserved]:
        """Windows on blocks of which none is there yet."""
        some = triples(blocks, first, last)
        found = self.store.reserve(session, place, some, place.layout.whole, reach=reach)
        assert None not in found
        return [one for one in found if one is not None]

    def put(
        self,
        session: Session,
        place: Place,
        blocks: Chain,
        first: int = 0,
        last: int | None = None,
        reach: Tier = Tier.DRAM,
    ) -> list[Slot]:
        """Write and seal blocks; the slots they are in."""
        windows = self.reserve(session, place, blocks, first, last, reach)
        for one in windows:
            self.write(one.slot, place)
        assert self.store.seal(session, [one.handle for one in windows]) == ["sealed"] * len(
            windows
        )
        self.store.check()
        return [one.slot for one in windows]

    def hand_off(self, window: Reserved) -> bytes:
        return self.store.claims.for_hand_off(window.slot)

    def hits(self, place: Place, blocks: Chain, tenant: str = "default") -> int:
        return self.match(place, blocks.hashes, tenant=tenant)[0]

    def match(
        self, place: Place, hashes: Sequence[bytes], tokens: int = 0, tenant: str = "default"
    ) -> tuple[int, Miss | None]:
        return self.store.match(place, self.store.keys(tenant, place, hashes), tokens)

    def pinned(self, session: Session, block: bytes, pin_ms: int = 0) -> Opened:
        one = self.store.open(session, SMALL, [block], (), pin_ms)[0]
        assert isinstance(one, Opened), one
        return one

    def read(self, slot: Slot, place: Place) -> bytes:
        layout = place.layout
        return b"".join(chunks(self.blocks.view, self.blocks.heads, slot, layout, layout.whole))

    def flip(self, slot: Slot, place: Place) -> None:
        """Damage one bit of a block's bytes."""
        self.arena.bytes[slot.offset + place.layout.head_bytes + 5] ^= 4

    def all_there_is(self) -> dict[str, Any]:
        """Everything a refused call must leave as it was, memory included."""
        blocks, index, store = self.blocks, self.blocks.index, self.store
        return {
            "slots": {
                slot.number: (
                    *(slot.offset, slot.owner, slot.state, slot.generation, slot.key, slot.parent),
                    *(slot.tenant, slot.tokens, slot.root, slot.pins, slot.windows, slot.listed),
                    *sorted(slot.children),
                )
                for slab in blocks.slabs.occupied()
                for slot in slab.slots.values()
            },
            "empty slabs": blocks.slabs.empty_slabs,
            "free": {slab.number: list(slab.free) for slab in blocks.slabs.occupied()},
            "recency": list(index.recent()),
            "gone": dict(index.gone._blocks),
            "orphans": {key: set(some) for key, some in index._orphans.items()},
            "filling": dict(blocks.filling),
            "doomed": {slot.number for slot in blocks.doomed},
            "pins": {n: (p.slot.number, p.expires) for n, p in store.pins._pins.items()},
            "windows": {
                n: (w.slot.number, w.fragment, w.sealed) for n, w in store.windows._windows.items()
            }
            | {
                n: (slot.number, run.layout.whole, False)
                for run in store.windows._runs
                for n, slot in zip(run.serials, run.slots, strict=True)
            },
            "groups": {
                group: [w.serial for w in some] for group, some in store.windows._of_group.items()
            },
            "counters": {k: v for k, v in self.counters.totals().items() if k != "overloaded"},
            "memory": hashlib.blake2b(self.arena.view).hexdigest(),
        }
