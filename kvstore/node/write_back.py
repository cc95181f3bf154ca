"""Sealed blocks on their way from DRAM to SSD, and the acknowledgement that they are there.

Blocks that wait are written in batches: bytes side by side, then one sync of each file, then one
commit of each path's index, then every acknowledgement. A file that failed is retired, and what was
being written to it is written elsewhere, so whoever waits for it hears of the failure only if that
too goes wrong. So it is with a path that is full, which is asked again later. Reading goes on in
either case.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.disk.protocol import DiskError, DiskFull
from kvstore.disk.volumes import Volumes
from kvstore.errors import Overloaded, Unavailable
from kvstore.failpoint import failpoint
from kvstore.limits import MiB
from kvstore.node.blocks import Blocks
from kvstore.node.frozen import Frozen
from kvstore.node.namespaces import LayoutOf
from kvstore.node.recovery import record_of
from kvstore.node.retirement import Retirement
from kvstore.node.threads import Threads
from kvstore.node.write_queue import DROPPED, NO_WAY, WriteQueue, not_durable
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

BATCH_BYTES, BATCH_BLOCKS = 64 * MiB, 256
FULL_SECONDS = 1.0  # before a disk that was full is asked again
TRIES_MAX = 3  # files that may fail under one block before it stays in DRAM alone


@dataclass(eq=False, slots=True)
class Copy:
    """One block being written, and what came of it."""

    slot: Slot
    target: Slot
    tries: int  # this one included
    whole: bool = True  # False: the bytes in DRAM are not what was sealed
    trouble: DiskError | None = None  # why it is not on SSD
    recorded: bool = False


class WriteBack:
    """The writing half of one SSD tier."""

    def __init__(
        self,
        blocks: Blocks,
        volumes: Volumes,
        frozen: Frozen,
        layout_of: LayoutOf,
        threads: Threads,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        assert blocks.ssd is not None, "blocks without an SSD"
        self._blocks, self._volumes, self._frozen = blocks, volumes, frozen
        self._layout_of, self._threads = layout_of, threads
        self._clock, self._counters = clock, counters
        self._queue = WriteQueue(blocks, counters)
        self._writing: dict[Slot, Copy] = {}
        self._committing = asyncio.Lock()
        self._turn = asyncio.Lock()  # a batch's, or an erasure's
        self._bug = ""
        self.retirement = Retirement(volumes, blocks.ssd, counters)

    @property
    def broken(self) -> str:
        """Why nothing is written any more."""
        return self._bug or self.retirement.broken

    async def serve(self) -> None:
        """Write what waits, until cancelled."""
        while True:
            await self._queue.changed.wait()
            self._queue.changed.clear()
            while len(self._queue) and not self.broken:
                self.retirement.ask_again(self._clock.now())
                if not self.retirement.taking:
                    await self._clock.sleep(FULL_SECONDS)
                    continue
                try:
                    async with self._turn:
                        await self._batch()
                except Exception:
                    log.exception("writing to SSD failed in a way that nobody foresaw")
                    self._bug = "the node met a bug; its log says which"
                    self._end_all()  # no thread has a slot of theirs any more
                    break
                await asyncio.sleep(0)  # a batch that writes nothing gave nobody else a turn
            if self.broken:
                self._queue.give_up(self.broken)

    @property
    def unwritten(self) -> int:
        """Blocks that wait to be written or are on their way."""
        return len(self._queue) + len(self._writing)

    async def durable(self, slots: Sequence[Slot]) -> None:
        """Return once every one of these sealed blocks survives a power loss, or raise."""
        alone = [slot for slot in slots if slot.lowest is not Tier.SSD]
        if any(slot.tier is Tier.HBM for slot in alone):
            raise not_durable(NO_WAY)
        if alone and self.broken:
            raise not_durable(self.broken)
        if any(slot.state is not State.SEALED for slot in alone):
            raise not_durable(DROPPED)
        await self._queue.written(alone, self._writing)

    async def flushed(self, keys: Iterable[bytes]) -> None:
        """Return once no path's index says anything of blocks of these keys that were dropped
        before now."""
        # Whoever asks may be cancelled. The commit goes on then, and keeps its turn.
        failed = await asyncio.shield(asyncio.ensure_future(self._forgotten()))
        if failed:
            self._queue.changed.set()  # perhaps nothing is written any more
        for key in keys if failed else ():  # of others a path may keep records for good
            if key in failed:
                raise Unavailable(f"dropped, but a restart may bring it back: {failed[key]}")

    def being_written(self) -> Iterable[Slot]:
        """Slots on SSD that get a block right now."""
        return [copy.target for copy in self._writing.values()]

    async def erase(self, slots: Sequence[Slot]) -> None:
        """As `Tiers.erase`. Other writes get their turn between two batches."""
        async with self._turn:  # nothing is on its way to any of them now
            failed = [*(await self._forgotten()).values()]
        for first in range(0, len(slots), BATCH_BLOCKS):
            async with self._turn:
                failed += await self._erase(slots[first : first + BATCH_BLOCKS])
        if failed:
            self._queue.changed.set()
            raise failed[0]

    async def _forgotten(self) -> dict[bytes, DiskError]:
        """Record that what was dropped before now is gone; of what that failed, by stored key. A
        batch under way records none of it later, and what it has recorded by then is among it."""
        return await self._commit((), range(len(self._volumes.names)))

    async def _erase(self, slots: Sequence[Slot]) -> list[DiskError]:
        """Overwrite the heads in these slots, durably; what went wrong."""
        outcomes = await asyncio.gather(*map(self._overwrite, slots), return_exceptions=True)
        for one in outcomes:  # all have ended: none may outlive its slots
            if isinstance(one, BaseException) and not isinstance(one, DiskError):
                raise one
        failed = [one for one in outcomes if isinstance(one, DiskError)]
        for file in sorted({self._volumes.file_of(slot.offset) for slot in slots}):
            failed += [one for one in [await self._sync(file)] if one is not None]
        return failed

    async def _overwrite(self, slot: Slot) -> None:
        file = self._volumes.file_of(slot.offset)
        if (retired := self.retirement.causes.get(file)) is not None:
            raise DiskError(retired)
        try:
            await self._threads.write(self._frozen.erase, slot)
        except DiskError as failed:
            if not isinstance(failed, DiskFull):
                self.retirement.failed(file, failed)
            raise

    async def _batch(self) -> None:
        """Write some of what waits."""
        self._begin()
        copies = [*self._writing.values()]
        await self._write(copies)
        until = self._clock.now() + FULL_SECONDS
        refused = ""
        for copy in copies:
            path = self._volumes.path_of(copy.target.offset)
            if isinstance(copy.trouble, DiskFull):
                self.retirement.full(path, copy.trouble, until)
                refused = str(copy.trouble)
            elif copy.recorded:
                self.retirement.took(path)
        self._end_all()
        if refused and not self.retirement.taking:
            self._queue.refuse(refused)

    def _end_all(self) -> None:
        for slot in [*self._writing]:
            self._end(self._writing.pop(slot))

    def _end(self, copy: Copy) -> None:
        """Say what came of a block, or let it wait for its next try."""
        slot, layout = copy.slot, self._layout_of(copy.slot.owner)
        stored = self._blocks.between.end_write(slot, copy.target, stored=copy.recorded)
        there = slot.state is State.SEALED
        if there and isinstance(copy.trouble, DiskFull):
            self._queue.add(slot, copy.tries - 1)
        elif there and copy.trouble is not None and copy.tries < TRIES_MAX and not self.broken:
            self._queue.add(slot, copy.tries)
        else:
            if there and not copy.whole:
                self._blocks.examine(slot, layout)
            why = self.broken or str(copy.trouble or DROPPED)
            self._counters.add("stored_blocks" if stored else "unstored_blocks")
            self._queue.answer(slot, None if stored else not_durable(why))

    async def _write(self, copies: Sequence[Copy]) -> None:
        """Bytes, syncs, records, in this order; each copy then knows its trouble."""
        failpoint("write_back.before_write")
        laid = await asyncio.gather(*map(self._lay, copies), return_exceptions=True)
        for one in laid:  # all have ended: none may outlive its slots
            if one is not None:
                raise one
        files: dict[int, list[Copy]] = defaultdict(list)
        for copy in copies:
            files[self._volumes.file_of(copy.target.offset)].append(copy)
        failpoint("write_back.before_sync")
        for file, there in sorted(files.items()):
            failed = await self._sync(file) if self._good(there) else None
            for copy in there:
                copy.trouble = copy.trouble or failed
        failpoint("write_back.before_commit")
        paths = range(len(self._volumes.names))
        await self._commit(copies, [one for one in paths if not self.retirement.whole(one)])
        failpoint("write_back.before_ack")

    async def _lay(self, copy: Copy) -> None:
        layout = self._layout_of(copy.slot.owner)
        try:
            copy.whole = await self._threads.write(
                self._frozen.write, copy.slot, copy.target, layout
            )
        except DiskError as failed:
            copy.trouble = failed
            if not isinstance(failed, DiskFull):
                self.retirement.failed(self._volumes.file_of(copy.target.offset), failed)

    async def _sync(self, file: int) -> DiskError | None:
        """Make a file durable, or say why not. One that failed once would lie: it is not asked."""
        try:
            if (retired := self.retirement.causes.get(file)) is not None:
                raise DiskError(retired)
            await self._threads.write(self._volumes.sync, file)
        except DiskError as failed:
            self.retirement.failed(file, failed)
            return DiskError(str(failed))  # what is lost is lost, also where the disk is full
        return None

    async def _commit(self, copies: Iterable[Copy], paths: Iterable[int]) -> dict[bytes, DiskError]:
        """Record these blocks, and that those dropped before now are gone; by stored key, why a
        record of one that is gone is still there.

        One at a time: of two the later one must not undo the earlier. The paths side by side.
        """
        async with self._committing:
            news: dict[int, list[Copy]] = defaultdict(list)
            for copy in self._good(copies):
                news[self._volumes.path_of(copy.target.offset)].append(copy)
            gone: dict[int, set[tuple[bytes, int]]] = defaultdict(set)
            for key, offset in self._blocks.unsaid:
                gone[self._volumes.path_of(offset)].add((key, offset))
            changed = [one for one in paths if news[one] or gone[one]]
            changes = (self._change(p, news[p], gone[p]) for p in changed)
            outcomes = await asyncio.gather(*changes, return_exceptions=True)
            for one in outcomes:  # all have ended: none may outlive its slots
                if isinstance(one, BaseException) and not isinstance(one, DiskError):
                    raise one
            return {
                key: one
                for path, one in zip(changed, outcomes, strict=True)
                if isinstance(one, DiskError)
                for key, _ in gone[path]
            }

    async def _change(
        self, path: int, news: Sequence[Copy], gone: set[tuple[bytes, int]]
    ) -> DiskError | None:
        """One path's part of a commit."""
        puts = {copy.slot.key: record_of(copy.slot, copy.target, self._volumes) for copy in news}
        deletes = {key for key, _ in gone} - puts.keys()
        if deletes:
            failpoint("commit.before_deletes")
        self._blocks.unsaid -= gone
        try:
            await self._threads.write(self._volumes.commit, path, puts, deletes)
        except BaseException as failed:
            self._blocks.unsaid |= gone
            if not isinstance(failed, DiskError):
                raise
            if not isinstance(failed, DiskFull):
                self.retirement.refused(path, failed)
            for copy in news:
                copy.trouble = failed
            return failed
        for copy in news:
            copy.recorded = True
        return None

    def _begin(self) -> None:
        """Slots on SSD for the next blocks that wait and are still there. One that comes to a path
        which was full is the last: it shows whether there is room now, and no more is in vain."""
        some = self._queue.next(BATCH_BLOCKS, BATCH_BYTES)
        for at, (slot, tries) in enumerate(some, 1):
            try:
                target = self._blocks.between.begin_write(slot, self._layout_of(slot.owner))
            except Overloaded as full:
                self._counters.add("unstored_blocks")
                self._queue.answer(slot, full)
                continue
            self._writing[slot] = Copy(slot, target, tries + 1)
            if self._volumes.path_of(target.offset) in self.retirement.doubted:
                self._queue.put_back(some[at:])
                break

    def _good(self, copies: Iterable[Copy]) -> list[Copy]:
        """Those that are laid down without trouble, of blocks that the node still has."""
        held = self._blocks.index.held
        return [
            copy
            for copy in copies
            if copy.whole and copy.trouble is None and held(copy.slot.key) is copy.slot
        ]
