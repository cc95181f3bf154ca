"""What a client for asyncio does, and what it does not, when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.client import AsyncClient, Client
from kvstore.client.aio import THREADS
from tests.client.kv import spec_of

SECONDS = 20.0


class Closed(threading.Event):
    """A client of which nothing is known but whether it was closed."""

    def close(self) -> None:
        self.set()


class OneThread(ThreadPoolExecutor):
    """The loop's own, where a program's other work keeps it busy."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given = 0

    def submit(self, *call: Any, **named: Any) -> Future[Any]:
        self.given += 1
        return super().submit(*call, **named)


def test_a_close_that_waits_for_a_thread_is_not_forgotten_when_it_is_cancelled() -> None:
    client, others_end = Closed(), threading.Event()

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(OneThread())
        loop.run_in_executor(None, others_end.wait, SECONDS)
        of_tasks = AsyncClient(client)  # type: ignore[arg-type]
        closing = asyncio.create_task(of_tasks.close())
        for _ in range(2):
            await asyncio.sleep(0)
            closing.cancel()
        others_end.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.is_set() and of_tasks._threads._shutdown

    asyncio.run(talk())


def test_nor_is_that_of_a_client_which_nobody_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cancelled while it connected, and is once more when its close waits for a thread."""
    client, connects, others_end = Closed(), threading.Event(), threading.Event()

    def at(*_: object) -> Closed:
        assert connects.wait(SECONDS)
        return client

    async def talk() -> None:
        loop, threads = asyncio.get_running_loop(), OneThread()
        loop.set_default_executor(threads)
        connecting = asyncio.create_task(AsyncClient.at("127.0.0.1:1", spec_of("nobody's")))
        await asyncio.sleep(0)
        loop.run_in_executor(None, others_end.wait, SECONDS)
        connecting.cancel()
        await asyncio.sleep(0)
        connects.set()
        async with asyncio.timeout(SECONDS):
            while threads.given < 3:
                await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.sleep(0)
        others_end.set()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert client.is_set()

    monkeypatch.setattr(Client, "at", at)
    asyncio.run(talk())


def test_a_cancelled_call_that_no_thread_has_begun_is_never_made() -> None:
    others_end, made = threading.Event(), list[str]()

    async def talk() -> None:
        of_tasks = AsyncClient(Closed())  # type: ignore[arg-type]
        others = [
            asyncio.create_task(of_tasks.run(others_end.wait, SECONDS)) for _ in range(THREADS)
        ]
        cancelled = asyncio.create_task(of_tasks.run(made.append, "all the same"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled], timeout=SECONDS / 2)
        assert cancelled.cancelled() and not others_end.is_set(), "it waits for no thread"
        others_end.set()
        assert all(await asyncio.gather(*others))
        await of_tasks.run(int)
        await of_tasks.close()

    asyncio.run(talk())
    assert not made
