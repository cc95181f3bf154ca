"""The client for asyncio programs: the blocking one, each call in a thread of its own pool.

Moves run outside the GIL, so threads overlap; the event loop is never held up by a copy.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from kvstore.block import Chain
from kvstore.client.client import Client, Match
from kvstore.client.later import later
from kvstore.client.pinned import Pinned
from kvstore.client.reader import Reader
from kvstore.client.writer import Writer
from kvstore.errors import SessionEnded, Unavailable
from kvstore.home import Home
from kvstore.spec import KVSpec
from kvstore.transfer.protocol import Memory

P = ParamSpec("P")
T = TypeVar("T")
Held = TypeVar("Held", bound=AbstractContextManager[Any])

THREADS = 8


class AsyncClient:
    """Awaitable forms of `Client`'s calls. Writers' and readers' own calls go through `run`."""

    def __init__(self, client: Client) -> None:
        self.blocking = client
        self._closed, self._home = False, Home()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moonpool")

    @classmethod
    async def at(cls, where: str | Path, spec: KVSpec, **options: Any) -> AsyncClient:
        connect = functools.partial(Client.at, where, spec, **options)
        connecting = asyncio.get_running_loop().run_in_executor(None, connect)
        try:
            return cls(await _ended(connecting))
        except asyncio.CancelledError:
            if connecting.exception() is None:  # nobody has it
                await _closed(connecting.result())
            raise

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run any blocking call of this client's objects: `await client.run(writer.seal)`.

        It has the CUDA stream that is current here when it begins. A cancelled call is over only
        when its thread is: deadlines see to that; where no thread has begun it, it never is made.
        Raises `Unavailable`, and never makes it, where no thread can be had.
        """
        begun = self._begun(functools.partial(call, *args, **kwargs))
        running = asyncio.wrap_future(begun)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not begun.cancel():
                await _over(running)
            raise

    def _begun(self, call: Callable[[], T]) -> Future[T]:
        self._home.check()
        if self._closed:
            raise SessionEnded("the client is closed")
        begun = later(self._threads, _on_this_stream(call))
        if begun is None:
            raise Unavailable("no thread can be had for this call")
        return begun

    async def _opened(self, call: Callable[P, Held], *args: P.args, **kwargs: P.kwargs) -> Held:
        """As `run`, of a call that opens blocks. Where it is cancelled nobody has what it made, and
        that is closed."""
        made: list[Held] = []
        try:
            await self.run(lambda: made.append(call(*args, **kwargs)))
        except asyncio.CancelledError:
            for one in made:
                # By the session's end all is let go, if it is not now.
                with suppress(asyncio.CancelledError, SessionEnded, Unavailable):
                    let_go = self._begun(functools.partial(one.__exit__, None, None, None))
                    await _ended(asyncio.wrap_future(let_go))  # made however often it is cancelled
            raise
        return made[0]

    async def match(self, blocks: Chain) -> Match:
        return await self.run(self.blocking.match, blocks)

    async def put(self, blocks: Chain, memory: Memory, *, first: int = 0, replicas: int = 1) -> int:
        return await self.run(self.blocking.put, blocks, memory, first=first, replicas=replicas)

    async def get(self, blocks: Chain, memory: Memory, *, first: int = 0) -> Match:
        return await self.run(self.blocking.get, blocks, memory, first=first)

    async def pin(self, blocks: Chain, *, pin_ms: int = 0) -> Pinned:
        return await self._opened(self.blocking.pin, blocks, pin_ms=pin_ms)

    async def writer(self, blocks: Chain, **options: Any) -> Writer:
        return await self._opened(self.blocking.writer, blocks, **options)

    async def reader(self, blocks: Chain, memory: Memory, **options: Any) -> Reader:
        return await self._opened(self.blocking.reader, blocks, memory, **options)

    async def forgo(self, writer_group: str) -> None:
        await self.run(self.blocking.forgo, writer_group)

    async def remove(self, blocks: Chain) -> int:
        return await self.run(self.blocking.remove, blocks)

    async def close(self) -> None:
        self._closed = True
        try:
            await _closed(self.blocking)
        finally:
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _on_this_stream(call: Callable[[], T]) -> Callable[[], T]:
    """The call as it would be in this thread: it reads KV in HBM once what computes it is done, and
    that is known by the stream. Another thread's own is behind nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return call
    stream = torch.cuda.current_stream()

    def called() -> T:
        with torch.cuda.stream(stream):
            return call()

    return called


async def _closed(client: Client) -> None:
    """Close it, cancelled or not: a node keeps the session of who has gone without that. Not in
    threads of its own: calls that only this ends may have them all."""
    await _ended(asyncio.get_running_loop().run_in_executor(None, client.close))


async def _ended(running: asyncio.Future[T]) -> T:
    """What a call in a thread gives; cancelled or not, when it has ended."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _over(running)
        raise


async def _over(running: asyncio.Future[Any]) -> None:
    """Wait for it, however often this is cancelled: nobody may have their memory back while a
    thread still moves bytes in it."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
