"""Blocks that are read from SSD: for as long as a caller waits, and for whoever asks next."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

from kvstore.block import Miss
from kvstore.node.readers import Opened
from kvstore.node.service import KVService
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SLAB, SMALL, TOKENS, prompt
from tests.node.ssd_rig import SsdRig
from tests.node.tiered_rig import SECONDS, TieredRig
from tests.simulation.sim_disk import SimDisk

BLOCKS = 4


class Slow(SimDisk):
    """A disk whose reads wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(1, 2 * SLAB, random.Random(1))
        self.may_read = threading.Event()

    def read(self, file: int, offset: int, into: memoryview) -> None:
        assert self.may_read.wait(SECONDS)
        super().read(file, offset, into)


def test_a_disk_that_is_late_is_waited_for_no_longer_than_the_caller_does() -> None:
    disk = Slow()
    rig = TieredRig({"/data/a": disk})

    async def work() -> None:
        slots, chain = rig.put_some(1, BLOCKS), prompt(SMALL, BLOCKS * TOKENS, start=1_000)
        assert await rig.durable(slots) == ""
        for slot in slots:
            rig.blocks.leave_tier(slot)
        keys = rig.store.keys("default", SMALL, chain.hashes)
        for _ in range(2):  # the second waits for the same reads
            async with asyncio.timeout(SECONDS), rig.tiers.brought(keys, 0.01):
                opened = rig.store.open(rig.writing, SMALL, chain.hashes)
                assert opened == [Miss.LATE] * BLOCKS
                assert rig.counters.totals()["open_miss_blocks.late"]
        disk.may_read.set()
        async with asyncio.timeout(SECONDS), rig.tiers.brought(keys):
            opened = rig.store.open(rig.writing, SMALL, chain.hashes)
            assert not any(isinstance(one, Miss) for one in opened)
        assert rig.counters.totals()["promoted_blocks"] == BLOCKS, "each was read once"

    rig.run(work)


class Call:
    """Stands for the context of a caller who waits for as long as it takes."""

    def time_remaining(self) -> None:
        return None


def test_what_is_in_memory_stays_there_while_the_rest_of_a_call_is_read() -> None:
    disk = Slow()
    rig = TieredRig({"/data/a": disk})
    nobody: Any = None
    given = (rig.sessions, rig.counters, pb.SessionEvent.Opened(), nobody, rig.tiers)
    service = KVService(rig.store, nobody, *given)

    async def work() -> None:
        slots, chain = rig.put_some(1, BLOCKS), prompt(SMALL, BLOCKS * TOKENS, start=1_000)
        assert await rig.durable(slots) == ""
        rig.blocks.leave_tier(slots[-1])
        keys = rig.store.keys("default", SMALL, chain.hashes)

        async def opened() -> list[Opened | Miss]:
            CALLER.set(Caller(Role.OPEN, "", "default"))
            async with service.brought(rig.writing, SMALL, chain.hashes, keys, Call()):
                return rig.store.open_stored(rig.writing, SMALL, keys)

        opening = asyncio.create_task(opened())
        await asyncio.sleep(0)
        rig.put_some(2, 60)  # all the room that there is
        rig.put_some(3, BLOCKS - 1)
        disk.may_read.set()
        assert not any(isinstance(one, Miss) for one in await opening)
        rig.end(rig.writing)
        assert not any(slot.held for slot in slots)

    rig.run(work)


class Buggy(SimDisk):
    """A disk that meets a bug when it is read, once."""

    met = False

    def read(self, file: int, offset: int, into: memoryview) -> None:
        if not self.met:
            self.met = True
            raise RuntimeError("a bug")
        super().read(file, offset, into)


def test_a_block_whose_reading_meets_a_bug_is_a_miss_and_not_on_its_way_for_ever() -> None:
    rig = TieredRig({"/data/a": Buggy(1, 2 * SLAB, random.Random(1))})

    async def work() -> None:
        slots, chain = rig.put_some(1, 1), prompt(SMALL, TOKENS, start=1_000)
        assert await rig.durable(slots) == ""
        for slot in slots:
            rig.blocks.leave_tier(slot)
        keys = rig.store.keys("default", SMALL, chain.hashes)
        async with asyncio.timeout(SECONDS), rig.tiers.brought(keys):
            assert rig.store.open(rig.writing, SMALL, chain.hashes) == [Miss.DAMAGED]
        rig.store.check()
        assert await rig.durable(rig.put_some(1, 1)) == ""

    rig.run(work)


def test_what_is_unlisted_is_proven_as_any_for_whoever_wants_it_durable(tmp_path: Path) -> None:
    """Left by an earlier run, and put again after what stands before it has gone."""
    chain = prompt(SMALL, 2 * TOKENS)

    async def story() -> None:
        async with SsdRig.started(tmp_path) as rig:
            await rig.put_durable(rig.writing, chain)
        async with SsdRig.started(tmp_path, epoch=2) as rig:
            first, second = rig.store.keys("default", SMALL, chain.hashes)
            assert rig.store.remove([first]) == {first}
            (window,) = rig.reserve(rig.writing, SMALL, chain, first=1)
            rig.write(window.slot, SMALL)
            assert rig.store.seal(rig.writing, [window.handle]) == ["existed"]
            slot = rig.blocks.index.held(second)
            assert slot is not None and slot.unproven and not slot.listed
            assert await rig.durable([slot]) == ""
            assert not slot.unproven

    asyncio.run(story())
