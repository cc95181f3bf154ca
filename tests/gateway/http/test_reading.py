"""What a call says is read where prompts are made into tokens, not where all calls are heard."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.config import GatewayConfig
from kvstore.gateway.http import app
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.makers import THREADS
from kvstore.gateway.http.served import Served
from tests.gateway.http.test_app import SECONDS, Caller, Scripted, until

PROMPT = {"prompt": [5, 6]}
MESSAGES = {"messages": [{"role": "user", "content": "w5"}]}
MANY = 40


@pytest.fixture(scope="module")
def served(chatting: Path) -> Served:
    return Served.of(GatewayConfig(chatting, engines=("127.0.0.1:1",)))


def of(said: dict[str, Any]) -> bytes:
    return json.dumps({"model": "tiny", "max_tokens": 3, **said}).encode()


@pytest.mark.parametrize(
    ("path", "reads", "said"),
    [("/v1/completions", "asked", PROMPT), ("/v1/chat/completions", "asked_chat", MESSAGES)],
)
def test_no_body_is_read_by_the_thread_that_hears_all_calls(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, reads: str, said: dict[str, Any]
) -> None:
    read: Callable[[bytes, Sequence[str]], Asked] = getattr(app, reads)
    by: list[threading.Thread] = []

    def watched(body: bytes, models: Sequence[str]) -> Asked:
        by.append(threading.current_thread())
        return read(body, models)

    monkeypatch.setattr(app, reads, watched)

    async def run() -> None:
        caller = Caller(served, Scripted())
        assert (await caller.call("POST", path, of(said))).status == 200
        assert (await caller.call("POST", path, b"{")).status == 400

    asyncio.run(run())
    assert len(by) == 2 and threading.main_thread() not in by


def test_bodies_of_one_client_keep_no_other_waiting(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, gate, begun = app.asked, threading.Event(), list[bytes]()
    long = of(PROMPT | {"user": "long"})

    def slow(body: bytes, models: Sequence[str]) -> Asked:
        begun.append(body)
        if body == long:
            assert threading.current_thread() is not threading.main_thread()
            assert gate.wait(SECONDS)
        return read(body, models)

    monkeypatch.setattr(app, "asked", slow)

    async def run() -> None:
        caller = Caller(served, Scripted(), places=2 * MANY)
        calls = [
            asyncio.create_task(caller.call("POST", "/v1/completions", long, "mine"))
            for _ in range(MANY)
        ]
        try:
            await until(lambda: begun)
            for _ in range(3):
                reply = await caller.call("POST", "/v1/completions", of(PROMPT), "another")
                assert reply.status == 200
            assert begun.count(long) < THREADS
        finally:
            gate.set()
        assert {(await one).status for one in calls} == {200}

    asyncio.run(run())
