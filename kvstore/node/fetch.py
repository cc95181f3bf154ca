"""Blocks that this node lacks and others have: brought into its arena, where its host's readers
read. Each is fetched once for however many want it; what cannot be had in time is a miss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore import traces
from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot
from kvstore.core.sourcing import stripes
from kvstore.limits import FETCH_SECONDS_MAX, FETCH_STRIPE_BYTES_MAX
from kvstore.memory.arena import Arena
from kvstore.node.blocks import Blocks
from kvstore.node.delivery import Deliveries, Wanted
from kvstore.node.namespaces import Place
from kvstore.node.peers import Peers
from kvstore.node.stripe import StripeRun
from kvstore.node.whereabouts import Whereabouts
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

STRIPE_ROWS_MAX = 256  # blocks that one call to a holder brings
BEHIND_SECONDS, BEHIND_SECONDS_MAX = 2e-3, 0.1  # a look at whether readers wait, and the last one


class _Coming(NamedTuple):
    """What brings a block, and whose it is."""

    task: asyncio.Task[None]
    tenant: str
    run: StripeRun

    def missed(self, key: bytes) -> bool:
        """Of one that did not come: whether it might have, had its holder been quicker."""
        return not self.task.done() or key in self.run.unreached


class Fetch:
    """What is being fetched, for all callers."""

    def __init__(
        self,
        blocks: Blocks,
        arena: Arena,
        peers: Peers,
        whereabouts: Whereabouts,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._blocks, self._peers, self._whereabouts = blocks, peers, whereabouts
        self._clock, self._counters = clock, counters
        self._deliveries = Deliveries(blocks, arena, peers, clock, counters)
        self._coming: dict[bytes, _Coming] = {}  # by stored key
        self._readers = 0  # callers that wait for what is coming

    async def leading(self, keys: Sequence[bytes]) -> int:
        """How many leading blocks of these somebody else lists."""
        held = await self.elsewhere(keys)
        return held.index(False) if False in held else len(held)

    async def elsewhere(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of these somebody else lists."""
        listed = await self._whereabouts.listed(keys)
        there = listed.there
        self._say(_picked(keys, listed.away & ~there), set(keys) if listed.all_said else set())
        return list(there.tolist())

    @asynccontextmanager
    async def brought(
        self, tenant: str, place: Place, hashes: Sequence[bytes], keys: Sequence[bytes],
        seconds: float,
    ) -> AsyncIterator[list[bytes]]:  # fmt: skip
        """Inside this, blocks that this node lacked and others had are here, if they came in time:
        the keys of these, and of what those before them have listed.

        What comes later is here all the same, for whoever asks next.
        """
        ends = self._clock.now() + seconds
        lacking = [i for i, key in enumerate(keys) if self._blocks.index.get(key) is None]
        kept, missed, under_way = list[Slot](), list[bytes](), dict[bytes, _Coming]()
        away, known = set[bytes](), set(keys)  # where nobody else is there
        try:
            if lacking and not self._whereabouts.alone:
                wanted = Wanted(tenant, place, hashes, keys, frozenset(keys)).pick(lacking)
                under_way, away, known = await self._begin(wanted, ends)
                if under_way:
                    self._readers += 1
                    tasks = {one.task for one in under_way.values()}
                    try:
                        await asyncio.wait(tasks, timeout=max(0.0, ends - self._clock.now()))
                    finally:
                        self._readers -= 1
            for i in lacking:
                slot = self._blocks.index.get(keys[i])
                if slot is not None:
                    slot.moves += 1  # so that nothing takes it before this caller looks
                    kept.append(slot)
                else:
                    missed.append(keys[i])
            late = {key for key, one in under_way.items() if one.missed(key)}
            self._say((away | late).intersection(missed), known.intersection(missed))
            yield [slot.key for slot in kept]
        finally:
            for slot in kept:
                self._blocks.let_go(slot)

    async def nowhere(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of these that are not here nor on their way, and that nobody else lists."""
        held = self._blocks.index.held
        lacking = [key for key in keys if held(key) is None and key not in self._coming]
        there = await self.elsewhere(lacking) if lacking else []
        return {key for key, listed in zip(lacking, there, strict=True) if not listed}

    async def take(self, holder: str, wanted: Wanted) -> None:
        """Bring what one node has of these, behind whatever readers wait for now, and wait for
        what is on its way already."""
        patience = self._clock.now() + BEHIND_SECONDS_MAX
        while self._readers and self._clock.now() < patience:
            await self._clock.sleep(BEHIND_SECONDS)
        new = wanted.pick([i for i, key in enumerate(wanted.keys) if key not in self._coming])
        if new.keys:
            run = StripeRun([holder], new, self._deliveries, self._peers, self._counters)
            self._start(run, new, FETCH_SECONDS_MAX)
        await asyncio.wait({self._coming[key].task for key in wanted.keys})

    async def forgo(self, tenant: str, keys: Sequence[bytes]) -> None:
        """Give up what is on its way of these blocks of a tenant, fetched or followed, and what is
        fetched along with it."""
        unwanted = set(keys)
        self._blocks.arriving.give_up(lambda one: one.key in unwanted and one.tenant == tenant)
        coming = [self._coming[key] for key in keys if key in self._coming]
        if tasks := {one.task for one in coming if one.tenant == tenant}:
            for task in tasks:
                if not task.cancelling():  # twice, and it would not wait for what still moves
                    task.cancel()
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = {one.task for one in self._coming.values()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._deliveries.close()

    async def _begin(
        self, wanted: Wanted, ends: float
    ) -> tuple[dict[bytes, _Coming], set[bytes], set[bytes]]:
        """Start what is not under way already: what brings any of these blocks, those that only
        others have who may not be asked now, and those of which nobody else has a word to say. Of
        what is under way already nobody was asked."""
        new = wanted.pick([i for i, key in enumerate(wanted.keys) if key not in self._coming])
        listed = await self._whereabouts.listed(new.keys)
        holders = listed.holders
        away = _picked(new.keys, listed.away & ~listed.there)
        # Others may have begun, or ended, while it was asked.
        free = np.array(
            [key not in self._coming and key not in self._blocks.index for key in new.keys],
            dtype=bool,
        )
        holders = {name: np.where(free, tiers, 0) for name, tiers in holders.items()}
        most = rows_max(wanted.place)
        for stripe in stripes(holders, self._deliveries.pace.rates()):
            for first in range(0, len(stripe.rows), most):
                some = new.pick(stripe.rows[first : first + most].tolist())
                run = StripeRun(
                    [stripe.holder, *stripe.others],
                    *(some, self._deliveries, self._peers, self._counters),
                )
                self._start(run, some, max(0.0, ends - self._clock.now()))
        under_way = {key: self._coming[key] for key in wanted.keys if key in self._coming}
        return under_way, away, set(new.keys) if listed.all_said else set()

    def _say(self, elsewhere: set[bytes], known: set[bytes]) -> None:
        """Of blocks that are not here: which another node has that did not give them, and of which
        it is known whether one does."""
        gone = self._blocks.index.gone
        gone.elsewhere(elsewhere)
        gone.nowhere(known - elsewhere)

    def _start(self, run: StripeRun, wanted: Wanted, patience: float) -> None:
        async def bring() -> None:
            with traces.span("fetch", blocks=len(wanted.keys)):
                await run.run(patience)

        task = asyncio.create_task(bring())
        coming = _Coming(task, wanted.tenant, run)
        self._coming.update(dict.fromkeys(wanted.keys, coming))

        def over(task: asyncio.Task[None]) -> None:
            for key in wanted.keys:
                if self._coming.get(key) is coming:
                    del self._coming[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a fetch broke", exc_info=error)

        task.add_done_callback(over)


def _picked(keys: Sequence[bytes], which: NDArray[np.bool_]) -> set[bytes]:
    return {keys[int(i)] for i in np.flatnonzero(which)}


def rows_max(place: Place) -> int:
    """Blocks of a place that another node is asked for in one go."""
    most = FETCH_STRIPE_BYTES_MAX // place.layout.sent_bytes
    return min(max(1, most), STRIPE_ROWS_MAX)
