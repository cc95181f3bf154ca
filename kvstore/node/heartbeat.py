"""The node's sign of life, given by a thread of its own: a node that is busy is no dead one.

A long call can hold up the node's loop for longer than its lease lasts. So the lease is renewed in
another loop, on metadata opened for that, for as long as the node's own loop has had a turn within
`BUSY_SECONDS`. What is done where the lease was lost all the same is done in the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Literal

from kvstore.clock import Clock
from kvstore.metadata import Metadata
from kvstore.metadata.announcer import Announcer
from kvstore.metadata.records import NodeRecord
from kvstore.rpc.kept import kept

log = logging.getLogger(__name__)

BUSY_SECONDS = 10.0  # without a turn of the node's loop it is as good as dead
_TURN_SECONDS = 0.1  # between two looks whether the loop turns
_END_SECONDS = 5.0  # that the last words may take


class Heartbeat:
    """Made, and called, in the node's loop."""

    def __init__(
        self,
        opened: Callable[[], Metadata],
        record: NodeRecord,
        lease_ms: int,
        lapsed: Callable[[NodeRecord], NodeRecord],
        clock: Clock,
        busy_seconds: float = BUSY_SECONDS,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is told, in the thread, of what nobody foresaw and that it goes on after."""
        self._opened, self._lapsed, self._clock = opened, lapsed, clock
        self._node_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="heartbeat", daemon=True
        )
        self._metadata: Metadata | None = None
        self._turned = clock.now()
        self._tasks: list[asyncio.Task[None]] = []
        self._awake = _Awake(clock, lambda: clock.now() - self._turned < busy_seconds)
        self._record, self._lease_ms, self._failed = record, lease_ms, failed

    async def announce(self) -> None:
        """Put the record, and keep it from then on. Raises what the metadata raises."""
        self._thread.start()
        await self._there(self._begin())
        self._tasks.append(asyncio.create_task(self._turn()))

    async def change_state(self, state: Literal["serving", "draining"]) -> None:
        await self._there(self._announcer.change_state(state))

    async def leave(self) -> None:
        """Take the record back, and end the thread."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._there(self._end())
        except TimeoutError:
            log.warning("the metadata does not let go: this node's record ends with its lease")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, _END_SECONDS)

    async def _turn(self) -> None:
        while True:
            self._turned = self._clock.now()
            await self._clock.sleep(_TURN_SECONDS)

    def _lapse(self, record: NodeRecord) -> NodeRecord:
        """Called in the thread; done in the node's loop."""

        async def done() -> NodeRecord:
            return self._lapsed(record)

        return asyncio.run_coroutine_threadsafe(done(), self._node_loop).result()

    async def _there(self, work: Coroutine[Any, Any, None]) -> None:
        found: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        await asyncio.wrap_future(found)

    # In the thread's loop

    async def _begin(self) -> None:
        self._metadata = self._opened()
        where = (self._metadata, self._record, self._lease_ms)
        self._announcer = Announcer(*where, self._lapse, self._awake, random.Random())
        await self._announcer.announce()
        keeping = kept("giving a sign of life", self._announcer.keep, self._clock, self._failed)
        self._keeping = asyncio.create_task(keeping)

    async def _end(self) -> None:
        if self._metadata is None:
            return
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self._announcer.leave()
        await self._metadata.close()


class _Awake:
    """A clock whose sleepers do not wake while somebody else does not turn."""

    def __init__(self, clock: Clock, turns: Callable[[], bool]) -> None:
        self._clock, self._turns = clock, turns

    def now(self) -> float:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        while not self._turns():
            await self._clock.sleep(_TURN_SECONDS)
