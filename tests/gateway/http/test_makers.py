"""One client's long prompts keep neither the others waiting nor whoever asks if all is well."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.config import GatewayConfig
from kvstore.core.turns import Places
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.makers import THREADS
from kvstore.gateway.http.served import Served
from tests.gateway.http.test_app import SECONDS, Caller, Scripted, until

LONG = "w1 " * 1_000
MANY = 40  # calls: more than an event loop has threads by itself


class Slow:
    """Long prompts are made into tokens once `gate` says so, each by itself."""

    def __init__(self) -> None:
        self.gate, self.begun, self.ended = threading.Semaphore(0), list[str](), list[str]()
        self._prompts = Served.prompts

    def __call__(self, served: Served, wanted: Asked) -> Any:
        (prompt,) = wanted.prompts
        self.begun.append(str(prompt))
        if str(prompt).endswith(LONG):
            assert self.gate.acquire(timeout=SECONDS)
        made = self._prompts(served, wanted)
        self.ended.append(str(prompt))
        return made


def at_once(*clients: str) -> int:
    """How many of their calls begin, in this order, while none ends."""
    places = Places(THREADS)
    return sum(places.try_take(one) for one in clients)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(Served, "prompts", lambda served, wanted: made(served, wanted))
    yield made
    made.gate.release(2 * MANY)


@pytest.fixture(scope="module")
def served(model_dir: Path) -> Served:
    return Served.of(GatewayConfig(model_dir, engines=("127.0.0.1:1",), max_model_len=1 << 20))


def test_other_clients_and_whether_it_is_ready_are_answered_meanwhile(
    served: Served, slow: Slow
) -> None:
    async def run() -> None:
        caller = Caller(served, Scripted(), places=2 * MANY)
        long = [asyncio.create_task(caller.ask("mine", prompt=LONG)) for _ in range(MANY)]
        await until(lambda: len(slow.begun) == at_once(*["mine"] * MANY))
        for _ in range(3):
            assert (await caller.ask("another")).status == 200
            assert (await caller.call("GET", "/ready")).status == 200
        assert LONG not in slow.ended
        slow.gate.release(MANY)
        assert {(await one).status for one in long} == {200}

    asyncio.run(run())


def test_those_of_several_clients_are_made_in_turn(served: Served, slow: Slow) -> None:
    async def run() -> None:
        caller = Caller(served, Scripted(), places=2 * MANY)
        says = {"mine": "w2", "hers": "w3", "its": "w4"}
        clients = ["mine"] * MANY + ["hers"] * 9 + ["its"]
        calls = [
            asyncio.create_task(caller.ask(who, prompt=f"{says[who]} {LONG}")) for who in clients
        ]
        await until(lambda: len(slow.begun) == at_once(*clients))
        before = len(slow.begun)
        for _ in range(3):
            now = len(slow.begun)
            slow.gate.release()
            await until(lambda now=now: len(slow.begun) > now)
        said = {one[:2] for one in slow.begun[before:]}
        assert "w4" in said | {one[:2] for one in slow.begun[:before]}, "its was behind many others"
        slow.gate.release(2 * MANY)
        assert {(await one).status for one in calls} == {200}

    asyncio.run(run())


def test_a_caller_whose_task_ends_gives_its_place_back(served: Served, slow: Slow) -> None:
    async def run() -> None:
        caller = Caller(served, Scripted(), places=2 * MANY)
        long = [asyncio.create_task(caller.ask("mine", prompt=LONG)) for _ in range(MANY)]
        begun = at_once(*["mine"] * MANY)
        await until(lambda: len(slow.begun) == begun)
        for one in long:
            one.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        slow.gate.release(begun)
        assert {(await caller.ask("mine")).status for _ in range(8)} == {200}
        assert slow.begun.count(LONG) == begun, "nobody waits for those that had not begun"

    asyncio.run(run())


def test_where_no_thread_can_be_had_a_call_is_refused_and_keeps_no_place(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def none(thread: threading.Thread) -> None:
        if thread.name.startswith("prompts"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def run() -> None:
        caller = Caller(served, Scripted())
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", none)
            for _ in range(2 * THREADS):
                assert (await caller.ask("mine")).status == 429
        assert (await caller.ask("mine")).status == 200

    asyncio.run(run())
