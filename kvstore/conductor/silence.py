"""How long somebody who is to say something says nothing, while this process listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TURN_SECONDS = 0.5  # in which a loop reads what came while it, or its whole process, stood still


@asynccontextmanager
async def heard_within(seconds: float) -> AsyncIterator[None]:
    """Raises `TimeoutError` where what is awaited takes longer. The loop has some more turns after
    that: of what came while it had none, all else would be held for silence."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        late = loop.call_later(seconds, lambda: limit.reschedule(loop.time() + TURN_SECONDS))
        try:
            yield
        finally:
            late.cancel()
