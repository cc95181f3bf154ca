"""What is on its way from each other node, bounded: the rest waits its turn, in the order it came.

So one slow node holds up those who want something of it, and neither this node's threads and
connections nor anybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvstore.errors import Overloaded
from kvstore.limits import FETCH_PEER_BYTES_MAX, FETCH_PEER_STRIPES_MAX

_RETRY_MS = 100


@dataclass(slots=True)
class _Way:
    """From one node to this."""

    bytes: int = 0
    stripes: int = 0
    wanting: int = 0  # that wait, or were just called
    line: deque[asyncio.Future[None]] = field(default_factory=deque)

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
    async def turn(self, node_id: str, size: int, seconds: float) -> AsyncIterator[None]:
        """Inside it so many bytes may come from a node; `Overloaded` if no turn comes in time."""
        way = self._ways.setdefault(node_id, _Way())
        way.wanting += 1
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wait(way, size)
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

    async def _wait(self, way: _Way, size: int) -> None:
        first = not way.line
        while not (first and way.fits(size)):
            called = asyncio.get_running_loop().create_future()
            if first:
                way.line.appendleft(called)
            else:
                way.line.append(called)
            try:
                await called
            except asyncio.CancelledError:
                if called in way.line:
                    way.line.remove(called)
                self._call_next(way)  # it may have been called just now
                raise
            first = True  # it was the first, and is again if there is no room

    def _call_next(self, way: _Way) -> None:
        while way.line:
            called = way.line.popleft()
            if not called.done():
                called.set_result(None)
                return

    def _tidy(self, node_id: str, way: _Way) -> None:
        if not way.stripes and not way.wanting:
            self._ways.pop(node_id, None)
