"""A client for asyncio that is cancelled while it closes is closed all the same."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.client import AsyncClient, Client
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
