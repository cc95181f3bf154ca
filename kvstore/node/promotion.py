"""Blocks on their way to DRAM, where readers read, from SSD or HBM: verified before anybody may.

What an earlier run of the node recorded is taken for granted until it is read, but not where
somebody wants it acknowledged: that is what `prove` is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from kvstore.block import Miss
from kvstore.clock import Clock
from kvstore.core.carried import Line
from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.room import RETRY_MS
from kvstore.disk.protocol import DiskError
from kvstore.errors import Overloaded
from kvstore.failpoint import failpoint
from kvstore.layout import SlotLayout
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import LayoutOf
from kvstore.node.threads import Threads

log = logging.getLogger(__name__)

# Fills the second slot, in DRAM, with the block of the first; or why it cannot. Called in a thread.
Read = Callable[[Slot, Slot, SlotLayout], Miss | None]


@dataclass(frozen=True, slots=True)
class Coming:
    """A block on its way into DRAM, and the slot it will be in."""

    target: Slot
    task: asyncio.Task[None]


class Promotion:
    """Brings blocks of one other tier into the arena, each once for however many want it."""

    def __init__(
        self,
        blocks: Blocks,
        source: Tier,
        read: Read,
        line: Line,
        layout_of: LayoutOf,
        threads: Threads,
        clock: Clock,
    ) -> None:
        self._blocks, self._source, self._read_one, self._line = blocks, source, read, line
        self._layout_of, self._threads = layout_of, threads
        self._clock = clock
        self._coming: dict[bytes, Coming] = {}  # by stored key

    def brought(
        self, keys: Sequence[bytes], seconds: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Inside this, blocks of these keys that were in the other tier alone are in DRAM, if they
        fit and were read within `seconds`. What is read later is there for whoever asks next."""
        return self._brought(keys, self._blocks.index.get, seconds)  # no reader reads the unlisted

    async def prove(self, doubted: Sequence[Slot]) -> bool:
        """Read what only an earlier run's records vouch for; whether all of it is there. Raises
        `Overloaded` where there is no room to read it."""
        async with self._brought([slot.key for slot in doubted], self._blocks.index.held, None):
            unproven = [slot for slot in doubted if slot.unproven]
            if any(slot.state is State.SEALED for slot in unproven):  # a read would have dropped it
                raise Overloaded("no room in memory to read and prove what is on SSD", RETRY_MS)
            return not unproven

    @asynccontextmanager
    async def _brought(
        self, keys: Sequence[bytes], find: Callable[[bytes], Slot | None], seconds: float | None
    ) -> AsyncIterator[None]:
        waits: list[Coming] = []
        try:
            spared, full = frozenset(keys), set[tuple[Owner, str]]()
            found = [slot for key in keys if (slot := find(key)) is not None]
            away = [slot for slot in found if slot.tier is self._source]
            for (owner, tenant), run in groupby(away, attrgetter("owner", "tenant")):
                if (owner, tenant) in full:
                    continue
                some = list(run)
                self._begin_reads(some, spared)
                for slot in some:
                    coming = self._coming.get(slot.key)
                    if coming is None:
                        full.add((owner, tenant))  # of what others hold; or it is at its quota
                        break
                    coming.target.moves += 1  # so that nothing takes it before this caller looks
                    waits.append(coming)
            if waits:
                await asyncio.wait([one.task for one in waits], timeout=seconds)
            yield
        finally:
            for one in waits:
                self._blocks.let_go(one.target)

    def _begin_reads(self, slots: Sequence[Slot], spared: Collection[bytes]) -> None:
        """Set out for those of these, of one owner and tenant, that are not on their way: for the
        first of them, as many as there is room for."""
        layout = self._layout_of(slots[0].owner)
        new = [*dict.fromkeys(slot for slot in slots if slot.key not in self._coming)]
        targets = self._blocks.between.begin_read(new, layout, spared)
        for slot, target in zip(new, targets, strict=False):
            task = asyncio.create_task(self._read(slot, target, layout))
            self._coming[slot.key] = Coming(target, task)

    async def _read(self, slot: Slot, target: Slot, layout: SlotLayout) -> None:
        miss: Miss | None = Miss.DAMAGED
        failpoint("promotion.before_read")
        line = self._line
        line.begin(self._clock.now())
        try:
            miss = await self._threads.read(self._read_one, slot, target, layout)
        except DiskError as failed:
            log.warning("a block could not be read: %s", failed)
        except Exception:  # else it would be on its way for ever
            log.exception("a block could not be read, in a way that nobody foresaw")
        finally:
            line.end(self._clock.now(), layout.block_bytes(slot.tokens) if miss is None else 0)
        failpoint("promotion.after_read")
        del self._coming[slot.key]
        slot.unproven = slot.unproven and miss is not None
        self._blocks.between.end_read(slot, target, miss)
        self._blocks.let_go(target)
