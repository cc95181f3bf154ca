"""The rig with an SSD tier on real files, and restarts in the same directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import lmdb

from kvstore.block import Chain
from kvstore.core.lifecycle import Slot
from kvstore.core.tombstones import Tombstones
from kvstore.disk.local import LocalDisk, data_path
from kvstore.node.sessions import Session
from tests.node.rig import SECRETS, SLAB, SMALL
from tests.node.tiered_rig import PLACES, TieredRig

FILE_SLABS = 4


class SsdRig(TieredRig):
    """Everything runs in the loop of the test; `started` makes one and serves meanwhile."""

    def __init__(self, directory: Path, epoch: int = 1) -> None:
        self.directory, self.epoch = directory, epoch
        size = 2 * FILE_SLABS * SLAB
        disk = LocalDisk.open(directory, size, FILE_SLABS * SLAB, SLAB, buffered=True)
        super().__init__({"ssd": disk}, epoch)

    @classmethod
    @asynccontextmanager
    async def started(
        cls, directory: Path, epoch: int = 1, tombstones: Tombstones | None = None
    ) -> AsyncIterator[Self]:
        rig = cls(directory, epoch)
        layouts = {owner: place.layout for owner, place in PLACES.items()}
        rig.tiers.recover(SECRETS, layouts, tombstones or Tombstones())
        serving = asyncio.create_task(rig.tiers.serve())
        try:
            yield rig
            rig.store.check()
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            rig.threads.shutdown()
            rig.volumes.close()

    async def put_durable(self, session: Session, blocks: Chain) -> list[Slot]:
        slots = self.put(session, SMALL, blocks)
        await self.tiers.durable(slots)
        return slots

    def leave_dram(self, slots: list[Slot]) -> list[Slot]:
        """These blocks are on SSD alone from now on; their slots there."""
        there = [slot.twin for slot in slots]
        for slot in slots:
            self.blocks.leave_tier(slot)
        return [one for one in there if one is not None]

    def flip_on_ssd(self, slot: Slot) -> None:
        """Damage one bit of the payload of a block's copy on SSD."""
        file, offset = divmod(slot.offset, FILE_SLABS * SLAB)
        with data_path(self.directory, file).open("r+b") as handle:
            handle.seek(offset + SMALL.layout.head_bytes + 5)
            (old,) = handle.read(1)
            handle.seek(-1, 1)
            handle.write(bytes([old ^ 4]))


def index_of(directory: Path) -> dict[bytes, bytes]:
    """What the index of a disk says while no node has it."""
    with (
        lmdb.open(str(directory / "index"), create=False) as environment,
        environment.begin() as transaction,
    ):
        return dict(transaction.cursor())


def put_back(directory: Path, records: dict[bytes, bytes]) -> None:
    """The index says this again, and nothing that came later."""
    with (
        lmdb.open(str(directory / "index"), create=False, map_size=1 << 30) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key in dict(transaction.cursor()):
            transaction.delete(key)
        for key, value in records.items():
            transaction.put(key, value)
