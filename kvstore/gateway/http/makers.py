"""Reads calls and makes their prompts into tokens, in threads that are for nothing else, of the
clients' calls in turn.

A large body or a long text takes seconds, and whoever sends many keeps nobody else waiting for more
than one: no client has all the threads, those that wait are let in a client at a time, and whatever
else the gateway does stands in no line behind them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kvstore.errors import Overloaded
from kvstore.rpc.entrance import Entrance

T = TypeVar("T")

THREADS = min(32, max(4, os.cpu_count() or 1))  # of four a client has three, and one is left
_RETRY_MS = 1_000


class Makers:
    """Its methods are for the event loop's thread."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "prompts")
        self._entrance = Entrance(THREADS)

    async def make(self, client: str, call: Callable[[], T]) -> T:
        """What the call comes to, once it is the client's turn. Raises `Overloaded` too."""
        await self._entrance.enter(client)
        try:
            made = asyncio.get_running_loop().run_in_executor(self._threads, call)
        except RuntimeError as error:  # no thread can be had: it is better in a while
            self._entrance.leave(client)
            raise Overloaded("the gateway has no thread for it now", _RETRY_MS) from error
        # The thread goes on, also where nobody waits for it any more.
        made.add_done_callback(lambda _: self._entrance.leave(client))
        return await asyncio.shield(made)
