"""One simulated node and its callers: the node's own code on a disk that may do anything.

Everything follows from one seed: the node's sizes, which faults there are and how often, what the
callers do, and in which order the disk's calls run. An oracle knows every payload that was ever
offered for a block and which blocks were acknowledged as durable. A read gives one of those
payloads or a miss, always; and what was acknowledged is there after any crash, unless it was
evicted, removed, purged, or a fault destroyed it. What was offered before a purge that returned is
never read again, nor found by a start whose index has come back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

from kvstore.block import Miss
from kvstore.clock import SimClock
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.disk.volumes import Volumes
from kvstore.errors import KVStoreError, Overloaded, WindowClosed
from kvstore.memory.arena import Arena
from kvstore.memory.strips import Damaged, StripWriter, chunks
from kvstore.metadata.protocol import Metadata
from kvstore.node.blocks import Blocks
from kvstore.node.from_hbm import FromHbm
from kvstore.node.handles import Handles
from kvstore.node.hbm import Hbm
from kvstore.node.purge import Purge, Scope, load_tombstones
from kvstore.node.readers import Opened
from kvstore.node.scrubber import Scrubber
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.node.tiers import Tiers
from kvstore.telemetry import NODE, Telemetry
from tests.node.rig import SECRETS, SLAB, SMALL, Known
from tests.simulation.jobs import FailedFiles, Jobs
from tests.simulation.nature import (
    Memory,
    Notes,
    Oracle,
    Prompts,
    Wrong,
    copied,
    harmful,
    some_disks,
)
from tests.simulation.sim_disk import Faults
from tests.simulation.strays import put_back, records_of, stray_heads

STEPS = 60
TURNS = 6  # of the event loop, at most, after each step
LOOKS = 1, 5, 5  # steps between two looks at all of the node's books; each seed has one of these
PLACES = {SMALL.owner: SMALL}


class World:
    """A node that is started, used, broken, crashed and started again."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.looks, self._checks = rng.choice(LOOKS), 0
        self.oracle, self.clock = Oracle(), SimClock()
        self.dram_slabs, self.file_slabs = rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
        self.disks = some_disks(rng, self.file_slabs)
        self.oracle.spoiled = any(map(harmful, (disk.faults for disk in self.disks.values())))
        self.flips, self.purges = rng.random() < 0.3, rng.random() < 0.4
        self.scrubs, self.slow_writers = rng.random() < 0.5, rng.random() < 0.3
        self.epoch, self.tasks = 0, set[asyncio.Task[None]]()
        self.notes, self.purging = Notes(), 0
        self.purged: dict[tuple[str, bytes], bytes] = {}  # records of it, by path and key
        self.prompts = Prompts(rng)
        self.hbm_slabs = random.Random(f"hbm {seed}").choice([0, 0, 1, 2])

    # Life

    async def start(self) -> None:
        self.epoch += 1
        self.counters = Telemetry(NODE)
        self.arena = Memory(self.dram_slabs * SLAB, self.hbm_slabs * SLAB)
        volumes = Volumes(self.disks)
        slabs = Slabs(volumes.capacity_bytes, SLAB, Tier.SSD, self.epoch << 40)
        self.blocks = Blocks(cast(Arena, self.arena), SLAB, self.counters, slabs)
        index = self.blocks.index
        index.drop_all = self._watched(index.drop_all)  # type: ignore[method-assign]
        self.sessions = Sessions()
        self.store = Store(self.blocks, Handles(self.epoch), self.clock, Known(), self.counters)
        self.failed = FailedFiles(self.blocks, volumes)
        self.jobs = Jobs(self.rng, self.failed)
        layout = SMALL.layout
        self.tiers = Tiers(
            *(self.blocks, volumes, lambda owner: layout, self.jobs, self.clock, self.counters)
        )
        faults = {name: disk.faults for name, disk in self.disks.items()}
        for disk in self.disks.values():
            disk.faults = Faults()  # a node that cannot start is none
        notes = cast(Metadata, self.notes)
        tombstones = await load_tombstones(notes, "n")
        layouts = {owner: place.layout for owner, place in PLACES.items()}
        self.tiers.recover(SECRETS, layouts, tombstones)
        for name, disk in self.disks.items():
            disk.faults = faults[name]
        self.purger = Purge(self.store, notes, self.tiers, "n", 0, self.clock, self.counters)
        self.scrubber = Scrubber(
            *(self.blocks, self.tiers, lambda owner: layout, self.clock, self.counters, 0)
        )
        self.session = self.sessions.begin("default", "simulation")
        self.hbm: Hbm | None = None
        if self.hbm_slabs:
            read = FromHbm(self.blocks.view, self.blocks.heads, partial(copied, self.arena)).read
            self.hbm = Hbm(self.blocks, read, lambda owner: layout, self.jobs, self.clock)
        both = [one.serve() for one in (self.tiers, self.hbm) if one is not None]
        self.serving = asyncio.gather(*both)

    async def stop(self) -> None:
        """Nobody of this process does anything any more."""
        for task in [*self.tasks, self.serving]:
            task.cancel()
        await asyncio.gather(*self.tasks, self.serving, return_exceptions=True)
        self.tasks.clear()

    async def run(self, steps: int = STEPS) -> Oracle:
        await self.start()
        try:
            for _ in range(steps):
                await self.step()
            await self.crash()
            await self.settle()
            await self.check_acked()
        finally:
            await self.stop()
        return self.oracle

    async def step(self) -> None:
        dice = self.rng.random()
        if dice < 0.3:
            self.begin(self.put())
        elif dice < 0.55:
            self.begin(self.get())
        elif dice < 0.58:
            self.begin(self.remove())
        elif dice < 0.62:
            await self.crash()
        elif dice < 0.66 and self.flips:
            self.flip()
        elif dice < 0.68 and self.purges:
            self.begin(self.purge())
        elif dice < 0.70 and self.scrubs:
            self.begin(self.scrub())
        elif dice < 0.76:
            await self.settle()
        else:
            for _ in range(self.rng.randrange(8)):
                self.jobs.run_one()
                await asyncio.sleep(0)
        await self._turns()
        self.check()

    def begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)

    async def settle(self) -> None:
        """Run the disk until nothing waits for it."""
        await self._turns()
        while self.jobs.run_one():
            await self._turns()

    async def _turns(self) -> None:
        """Let everybody do what they can, for a bounded time."""
        for _ in range(TURNS):
            if not asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]
                return
            await asyncio.sleep(0)

    # What callers do

    async def put(self) -> None:
        blocks = self.prompts.one()
        keep, rng = 1 + self.rng.randrange(len(blocks)), self.rng
        triples = [(blocks.hashes[i], blocks.parent(i), blocks.tokens[i]) for i in range(keep)]
        try:
            told = (SMALL.layout.whole, "", 0, self.reach())
            windows = self.store.reserve(self.session, SMALL, triples, *told)
        except Overloaded:
            return
        handles, hashes = [], []
        for (block, _, tokens), one in zip(triples, windows, strict=True):
            if one is None:
                continue
            data = rng.randbytes(SMALL.layout.block_bytes(tokens))
            self.oracle.offered.setdefault(block, set()).add(data)
            whole = SMALL.layout.whole
            writer = StripWriter(self.blocks.view, self.blocks.heads, one.slot, SMALL.layout, whole)
            writer.write(data)
            handles.append(one.handle)
            hashes.append(block)
        for _ in range(rng.randrange(60) if self.slow_writers else 0):
            await asyncio.sleep(0)  # others have their turn between the bytes and the seal
        if handles:
            try:
                self.store.seal(self.session, handles)
            except WindowClosed:
                self.store.abort(self.session, handles)
                return
        if rng.random() < 0.7:
            every, dropped = [block for block, _, _ in triples], len(self.dropped)
            # One that was dropped before it could be asked for is not among what is acknowledged.
            try:
                async with self.brought(self._keys(every)):
                    held = {b: self.blocks.index.held(key) for b, key in self._pairs(every)}
                    asked = {block: slot for block, slot in held.items() if slot is not None}
                    if any(slot.tier is Tier.HBM for slot in asked.values()):
                        return
                    await self.tiers.durable(list(asked.values()))
            except KVStoreError:
                return
            # What was dropped up to now was not what is acknowledged now, though of its name. One
            # that was dropped meanwhile may be there anew, and of that nothing was said.
            self.note_drops()
            gone = {key for key, _ in self.dropped[dropped:]}
            there = [(b, key) for b, key in self._pairs(asked) if key in self.blocks.index]
            self.oracle.acked |= {block for block, key in there if key not in gone}

    async def get(self) -> None:
        blocks = self.prompts.one()
        keys, reach = self._keys(blocks.hashes), self.reach()
        async with self.brought(keys, reach):
            opened = self.store.open_stored(self.session, SMALL, keys, reach=reach)
        for block, one in zip(blocks.hashes, opened, strict=True):
            if isinstance(one, Opened):
                self._read(block, one)

    def reach(self) -> Tier:
        """Of a caller: some have a GPU."""
        return self.rng.choice([Tier.DRAM, Tier.HBM]) if self.hbm_slabs else Tier.DRAM

    @asynccontextmanager
    async def brought(self, keys: list[bytes], reach: Tier = Tier.DRAM) -> AsyncIterator[None]:
        """As the node's service does it."""
        async with AsyncExitStack() as stack:
            if self.hbm is not None and reach is not Tier.HBM:
                await stack.enter_async_context(self.hbm.brought(keys))
            await stack.enter_async_context(self.tiers.brought(keys))
            yield

    async def remove(self) -> None:
        blocks = self.prompts.one()
        some = blocks.hashes[self.rng.randrange(len(blocks)) :]
        self.store.remove(keys := self.store.keys("default", SMALL, some))
        self.oracle.acked -= set(some)
        with suppress(KVStoreError):
            await self.tiers.flushed(keys)

    async def purge(self) -> None:
        """Of the tenant or of the namespace: here either is all there is."""
        one = self.rng.random() < 0.5
        scope = Scope(tenant="default") if one else Scope(namespace=SMALL.owner[0])
        before = {block: set(payloads) for block, payloads in self.oracle.offered.items()}
        held = self.blocks.index
        records = {name: one for name, one in records_of(self.disks).items() if name[1] in held}
        self.oracle.acked.clear()
        self.purging += 1
        try:
            await self.purger.carry_out(scope)
        except KVStoreError:
            return
        finally:
            self.purging -= 1
        self.oracle.forget(before)
        left = records.items() & records_of(self.disks).items()
        if left:
            raise Wrong(f"the indexes still name {len(left)} purged blocks")
        self.purged |= records

    async def scrub(self) -> None:
        with suppress(Overloaded):
            async for _ in self.scrubber.round(0):
                pass

    # What befalls the node

    async def crash(self) -> None:
        if self.purging:
            self.oracle.acked.clear()  # it had begun, and may have come to any point
        await self.stop()
        self.note_drops()
        # A process that is killed leaves to the disk what it gave it; a power loss does not.
        disks = [(name, disk.crash()) for name, disk in self.disks.items()]
        if self.rng.random() < 0.3:
            stray_heads(self.blocks, [disk for _, disk in disks], self.rng)
            for disk in self.rng.choices([disk for _, disk in disks], k=2):
                disk.lose_index()
        self.rng.shuffle(disks)
        self.disks = dict(disks)
        self.oracle.flipped = False  # what was damaged is gone with the memory
        back = put_back(self.disks, self.purged, self.rng)
        await self.start()
        if any(key in self.blocks.index for key in back):
            raise Wrong("purged blocks are found again, since an index has come back")
        if not self.oracle.spoiled:
            missing = [b for b in self.oracle.acked if self._keys([b])[0] not in self.blocks.index]
            if missing:
                raise Wrong(f"{len(missing)} acknowledged blocks are gone after a crash")

    def flip(self) -> None:
        if self.rng.random() < 0.5:
            self.rng.choice(list(self.disks.values())).flip_bit()
            self.oracle.spoiled = True
            return
        slots = [slot for slot in self.blocks.index if slot.tier is not Tier.SSD]
        if slots:
            slot = self.rng.choice(slots)
            self.arena.view[slot.offset + SMALL.layout.head_bytes + 5] ^= 1
            self.oracle.flipped = True

    # What must hold

    def check(self) -> None:
        self._checks += 1
        if self._checks % self.looks == 0:
            self.store.check()
        self.failed.check()
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self.serving.done():
            raise Wrong(f"the tier stopped serving: {self.serving.exception()!r}")
        self.note_drops()
        missing = [key for _, key in self._acked() if key not in self.blocks.index]
        if missing and not self.oracle.spoiled:
            raise Wrong(f"{len(missing)} acknowledged blocks are gone and nobody dropped them")

    def note_drops(self) -> None:
        """What the node let go of itself is acknowledged no more."""
        new, self.seen = self.dropped[self.seen :], len(self.dropped)
        acked = {key: block for block, key in self._acked()}
        for key, why in new:
            if key not in acked:
                continue
            if why not in (Miss.EVICTED, Miss.REMOVED) and not self.oracle.spoiled:
                raise Wrong(f"an acknowledged block is gone: {why}")
            self.oracle.acked.discard(acked[key])

    async def check_acked(self) -> None:
        """Every acknowledged block can be read, one after the other."""
        for block in sorted(self.oracle.acked):
            task = asyncio.ensure_future(self._read_one(block))
            while not task.done():
                await self.settle()
            task.result()
            self.check()

    async def _read_one(self, block: bytes) -> None:
        keys = self._keys([block])
        listed = self.blocks.index.get(keys[0]) is not None
        async with self.brought(keys):
            opened = self.store.open(self.session, SMALL, [block])[0]
        if isinstance(opened, Opened):
            self._read(block, opened)
        elif listed and not self.oracle.spoiled:
            raise Wrong(f"an acknowledged block cannot be read: {opened}")

    def _read(self, block: bytes, opened: Opened) -> None:
        try:
            view, heads, layout = self.blocks.view, self.blocks.heads, SMALL.layout
            data = b"".join(chunks(view, heads, opened.slot, layout, layout.whole))
        except Damaged:
            self.blocks.examine(opened.slot, SMALL.layout)
            if not (self.oracle.spoiled or self.oracle.flipped):
                raise Wrong("a block is damaged though nothing damaged it") from None
        else:
            self.oracle.check_read(block, data)
        self.store.readers.close(self.session, [opened.handle])

    def _acked(self) -> list[tuple[bytes, bytes]]:
        return self._pairs(self.oracle.acked)

    def _pairs(self, blocks: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Hash and stored key of each."""
        return list(zip(every := list(blocks), self._keys(every), strict=True))

    def _watched(self, drop: Callable[..., None]) -> Callable[..., None]:
        """The index's own, with a note of each block that goes: it may be put again at once."""
        self.dropped: list[tuple[bytes, Miss]] = []
        self.seen = 0

        def noted(slots: Sequence[Slot], why: Miss) -> None:
            self.dropped += [(slot.key, why) for slot in slots]
            drop(slots, why)

        return noted

    def _keys(self, hashes: Any) -> list[bytes]:
        return self.store.keys("default", SMALL, list(hashes))
