"""Why requests were sent where they were, asked from a browser, of conductors: they may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from kvstore.errors import Overloaded

Explain: TypeAlias = Callable[[str], dict[str, Any] | None]

AT_ONCE = 4
RETRY_MS = 500


class Explained:
    """In threads of its own: whoever asks for many keeps nothing else of the process waiting."""

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._threads = ThreadPoolExecutor(AT_ONCE, "explained")
        self._free = asyncio.Semaphore(AT_ONCE)

    async def answer(self, request_id: str) -> dict[str, Any] | None:
        """None where nobody remembers it. Raises `Overloaded` while as many as may be are asked."""
        if self._free.locked():
            raise Overloaded(f"{AT_ONCE} others are being explained", RETRY_MS)
        async with self._free:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._explain, request_id)
