"""Blocks of other nodes over UCX, where both sides offer it and while it works; else over TCP.

What does not work is said once, with what was tried, and tried again after a while. Nobody waits
for it: until UCX is known to work with a node, its blocks come over TCP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kvstore.clock import Clock
from kvstore.errors import KVStoreError, Unavailable
from kvstore.layout import SlotLayout
from kvstore.metadata.records import NodeRecord
from kvstore.telemetry import Telemetry
from kvstore.transfer.landing import Landing
from kvstore.transfer.lanes import Lanes
from kvstore.transfer.protocol import Mask, Slots
from kvstore.transfer.stream import LatestTls
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_aside import Aside, AsideLane
from kvstore.transfer.ucx_lane import UCX_STREAMS
from kvstore.transfer.ucx_pieces import PiecesTaken

log = logging.getLogger(__name__)

REST_SECONDS = 10.0  # after a failure, until it is tried again
# A call that failed later than this is asked of another node: its reader has waited long enough.
_AGAIN_SECONDS = 0.25

Connection = tuple[str, bytes, bytes, float, LatestTls | None]
InThread = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
Pull = Callable[[Lanes, SlotLayout, Slots, Landing], Coroutine[Any, Any, Mask]]


class UcxWays:
    """What the links of a node have in common."""

    def __init__(self, clock: Clock, counters: Telemetry) -> None:
        """Raises `ConfigError` where there is no UCX to be had."""
        shared_agent()
        self.aside, self.clock, self.counters = Aside(), clock, counters

    def to(self, record: NodeRecord) -> UcxWay | None:
        """The way to a node, if that offers it."""
        return UcxWay(self, record.address) if "ucx" in record.transports else None


class UcxWay:
    """To one node, beside the link's own connections."""

    def __init__(self, ways: UcxWays, address: str) -> None:
        self._aside, self._clock, self._counters = ways.aside, ways.clock, ways.counters
        self._address = address
        self._lanes: Lanes | None = None
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()  # more calls at once would only take turns at the mover
        self._rests_until = 0.0
        self.failure: KVStoreError | None = None  # of the last time, until it works again
        self._tasks: set[asyncio.Task[None]] = set()
        self._making = self._closed = False

    def begin(self, connection: Connection, in_thread: InThread) -> None:
        """Find out in the background whether it works, by connections like the link's own."""
        self._connection, self._in_thread = connection, in_thread
        self._try()

    async def pull(
        self, layout: SlotLayout, slots: Slots, landing: Landing, pull: Pull
    ) -> Mask | None:
        """What `pull` says that came; None where the blocks should come another way."""
        async with self._turn:
            lanes = self._lanes
            if lanes is None:
                self._try()
                return None
            if not self._aside.fits(layout):
                return None
            began = self._clock.now()
            try:
                moved = await pull(lanes, layout, slots, landing)
            except PiecesTaken:  # by this node's other calls: the peer has done nothing wrong
                return None
            except Unavailable as error:
                self._failed(error)
                if self._clock.now() - began > _AGAIN_SECONDS:
                    raise
                return None
        size = sum(layout.block_bytes(tokens) for tokens in slots.tokens[moved].tolist())
        self._counters.add("ucx_fetched_bytes", size)
        return moved

    async def close(self) -> None:
        """What is being made ends by itself: nobody waits for a node that does not answer."""
        self._closed = True
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            await self._in_thread(lanes.close)

    def _try(self) -> None:
        if not (self._making or self._closed) and self._clock.now() >= self._rests_until:
            self._making = True
            self._start(self._make())

    async def _make(self) -> None:
        assert self._connection is not None, "a way is used once it is begun"
        address, session, token, stall_seconds, tls = self._connection
        lane_of = partial(AsideLane, self._aside, stall_seconds)
        make = partial(
            Lanes, *(address, session, token, stall_seconds, tls), lane_of, streams=UCX_STREAMS
        )
        try:
            lanes = await self._in_thread(make)
        except KVStoreError as error:
            self._failed(error)
        else:
            if self._closed:
                lanes.close()  # which takes no time: nobody has used them
            else:
                self._lanes, self.failure = lanes, None
                log.info("node %s: its blocks come over ucx", self._address)
        finally:
            self._making = False

    def _failed(self, error: KVStoreError) -> None:
        if self._closed:
            return
        self.failure = error
        self._rests_until = max(self._rests_until, self._clock.now() + REST_SECONDS)
        self._counters.add("ucx_failures")
        log.warning(
            "node %s: ucx was tried for its blocks and did not work (%s): they come over tcp",
            *(self._address, error),
        )
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            self._start(self._in_thread(lanes.close))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
