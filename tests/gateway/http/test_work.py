"""Requests on their way, and the places they have."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kvstore.errors import Overloaded, Unavailable
from kvstore.gateway.caller import Caller, CallerLeft
from kvstore.gateway.http.keys import Whose
from kvstore.gateway.http.work import Work
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.telemetry import GATEWAY, Telemetry

SECONDS = 20.0


class AtOnce:
    """It is done as soon as it runs."""

    def run(self, request: Request, told: Told, caller: Caller | None, _: Outcome) -> Outcome:
        return Outcome(tokens=[1])


def test_where_no_thread_can_be_had_a_call_is_refused_and_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, asked = threading.Thread.start, [Request(f"r{i}", (1,), 1) for i in range(3)]

    def first_alone(thread: threading.Thread) -> None:
        if thread.name in ("r1", "r2"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def run() -> None:
        work = Work(AtOnce(), 4, Telemetry(GATEWAY))
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", first_alone)
            with pytest.raises(Overloaded, match="no thread"), work.running(Whose(""), asked):
                raise AssertionError("it was let in")
        await asyncio.wait_for(work.idle(), SECONDS)
        with work.running(Whose(""), asked) as job:
            assert len([one async for one in job.events(3)]) == 3

    asyncio.run(run())


def test_an_answer_comes_and_its_place_is_free_where_it_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a figure that is none")

    async def run() -> None:
        work = Work(AtOnce(), 4, Telemetry(GATEWAY))
        monkeypatch.setattr(work.recent, "add", fails)
        unforeseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unforeseen.append(told))
        with work.running(Whose(""), [Request("r", (1,), 1)]) as job:
            async with asyncio.timeout(SECONDS):
                assert [end async for _, end in job.events(1)] == [Outcome(tokens=[1])]
                await work.idle()
        assert len(unforeseen) == 1, "it is logged"

    asyncio.run(run())


def test_what_is_not_let_in_is_counted_as_refused() -> None:
    async def run() -> None:
        telemetry = Telemetry(GATEWAY)
        work, asked = Work(AtOnce(), 2, telemetry), [Request(f"r{i}", (1,), 1) for i in range(3)]
        with pytest.raises(Overloaded), work.running(Whose("all places"), asked):
            raise AssertionError("it was let in")
        whose = Whose("its own", requests=1)
        with work.place(whose), pytest.raises(Overloaded), work.place(whose):
            raise AssertionError("it was let in")
        assert telemetry.values("requests") == {"refused": 4}

    asyncio.run(run())


class NoEngine:
    """None can be had."""

    def run(self, request: Request, told: Told, caller: Caller | None, _: Outcome) -> Outcome:
        raise Unavailable("no engine serves this model")


def test_why_a_request_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        work = Work(NoEngine(), 1, Telemetry(GATEWAY))
        with work.running(Whose(""), [Request("r", (1,), 1)]) as job:
            async with asyncio.timeout(SECONDS):
                with pytest.raises(Unavailable):
                    assert not [one async for one in job.events(1)]

    asyncio.run(run())
    assert [one.getMessage() for one in caplog.records] == [
        "request r failed: no engine serves this model"
    ]


def test_prompts_of_a_call_that_end_since_another_failed_have_failed_and_were_not_left() -> None:
    class First:
        """Of a call's prompts it fails, and the others run until they are ended."""

        def run(
            self, request: Request, told: Told, caller: Caller | None, outcome: Outcome
        ) -> Outcome:
            if request.id == "r0":
                raise Unavailable("no engine serves this model")
            assert caller is not None
            caller.pause(SECONDS)
            raise AssertionError("nobody ended it")

    async def run(leaves: bool) -> dict[str, float]:
        telemetry = Telemetry(GATEWAY)
        work = Work(First(), 4, telemetry)
        asked = [Request(f"r{i}", (1,), 1) for i in range(int(leaves), 3)]
        with pytest.raises(Unavailable), work.running(Whose(""), asked) as job:
            async with asyncio.timeout(SECONDS):
                if leaves:
                    job.leave(CallerLeft("the caller left"))
                assert not [one async for one in job.events(3)]
        await asyncio.wait_for(work.idle(), SECONDS)
        return telemetry.values("requests")

    assert asyncio.run(run(leaves=False)) == {"failed": 3}
    assert asyncio.run(run(leaves=True)) == {"left": 2}


def test_of_one_that_is_not_whole_it_is_told_what_came_of_it() -> None:
    class Leaves:
        """Its caller does, behind the second token."""

        def run(
            self, request: Request, told: Told, caller: Caller | None, outcome: Outcome
        ) -> Outcome:
            outcome.tokens.extend([1, 2])
            outcome.engines.append("here")
            outcome.ttft_seconds = 0.5
            raise CallerLeft("the caller left")

    async def run() -> None:
        work = Work(Leaves(), 1, Telemetry(GATEWAY))
        with work.running(Whose(""), [Request("r", (1,), 4)]):
            async with asyncio.timeout(SECONDS):
                while not (found := work.recent.newest()):
                    await asyncio.sleep(0.01)
        told = found[0]["answer"], found[0]["output_tokens"], found[0]["ttft_seconds"]
        assert told == ("left", 2, 0.5) and found[0]["engines"] == ["here"]

    asyncio.run(run())
