"""What is on its way from each other node, bounded: the rest waits its turn, a tenant at a time, of
each in the order it came.

So no tenant has others wait for all that it wants; and one slow node holds up those who want
something of it, and neither this node's threads and connections nor anybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvstore.core.turns import Line
from kvstore.errors import Overloaded
from kvstore.limits import FETCH_PEER_BYTES_MAX, FETCH_PEER_STRIPES_MAX

_RETRY_MS = 100


@dataclass(slots=True)
class _Way:
    """From one node to this."""

    bytes: int = 0
    stripes: int = 0
    wanting: int = 0  # that wait, or were just called
    line: Line[asyncio.Future[None]] = field(default_factory=Line)  # who waits

    def fits(self, size: int) -> bool:
        """A block that is larger than all that may be under way goes alone."""
        some = self.stripes < FETCH_PEER_STRIPES_MAX
        return not self.stripes or (some and self.bytes + size <= FETCH_PEER_BYTES_MAX)


class InFlight:
    """By node."""

    def __init__(self) -> None:
        self._ways: dict[str, _Way] = {}

    def bytes_from(self, node_id: str) -> int:
        """On their way now."""
        way = self._ways.get(node_id)
        return 0 if way is None else way.bytes

    @asynccontextmanager
    async def turn(
        self, node_id: str, tenant: str, size: int, seconds: float
    ) -> AsyncIterator[None]:
        """Inside it so many bytes may come from a node; `Overloaded` if no turn comes in time."""
        way = self._ways.setdefault(node_id, _Way())
        way.wanting += 1
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wait(way, tenant, size)
        except TimeoutError:
            why = f"{way.bytes} bytes are on their way from node {node_id} already"
            raise Overloaded(why, _RETRY_MS) from None
        finally:
            way.wanting -= 1
            self._tidy(node_id, way)
        self._ways[node_id] = way
        way.bytes += size
        way.stripes += 1
        try:
            self._call_next(way)  # there may be room for another
            yield
        finally:
            way.bytes -= size
            way.stripes -= 1
            self._call_next(way)
            self._tidy(node_id, way)

    async def _wait(self, way: _Way, tenant: str, size: int) -> None:
        first = not way.line
        while not (first and way.fits(size)):
            called = asyncio.get_running_loop().create_future()
            if first:
                way.line.stay_first(tenant, called)
            else:
                way.line.join(tenant, called)
            try:
                await called
            except asyncio.CancelledError:
                way.line.leave(tenant, called)
                self._call_next(way)  # it may have been called just now
                raise
            first = True  # it was the first, and is again if there is no room

    def _call_next(self, way: _Way) -> None:
        while way.line:
            called = way.line.next()
            if not called.done():
                called.set_result(None)
                return

    def _tidy(self, node_id: str, way: _Way) -> None:
        if not way.stripes and not way.wanting:
            self._ways.pop(node_id, None)
