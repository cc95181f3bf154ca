"""Logprobs are held until an answer is whole: there is room for so many, for no client all."""

from __future__ import annotations

import asyncio

import pytest

from kvstore.errors import Overloaded
from kvstore.gateway.http import work as work_module
from kvstore.gateway.http.keys import Whose
from kvstore.gateway.http.work import Work
from kvstore.gateway.request import Request
from kvstore.telemetry import GATEWAY, Telemetry
from tests.gateway.http.test_work import SECONDS, AtOnce

MINE, HERS = Whose("mine"), Whose("hers")


def asking(whose: Whose, tokens: int, beside: int | None) -> tuple[Whose, list[Request]]:
    return whose, [Request("r", (1,), tokens, client=whose.client, logprobs=beside)]


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "SERVE_LOGPROBS_HELD_MAX", 100)


def test_more_logprobs_than_there_is_room_for_are_refused_and_others_are_not() -> None:
    async def run() -> None:
        telemetry = Telemetry(GATEWAY)
        work = Work(AtOnce(), 8, telemetry)
        with work.running(*asking(MINE, 10, 5)):
            with (
                pytest.raises(Overloaded, match="no room"),
                work.running(*asking(MINE, 10, 1)),
            ):
                raise AssertionError("it was let in")
            with (
                work.running(*asking(MINE, 99, None)),
                work.running(*asking(HERS, 10, 1)),
            ):
                pass
        with work.running(*asking(MINE, 10, 6)):  # there is room again
            pass
        await asyncio.wait_for(work.idle(), SECONDS)
        assert telemetry.values("requests")["refused"] == 1

    asyncio.run(run())


def test_a_call_that_is_refused_for_another_reason_keeps_no_room() -> None:
    async def run() -> None:
        work = Work(AtOnce(), 1, Telemetry(GATEWAY))
        with work.place(HERS):
            for _ in range(3):
                with (
                    pytest.raises(Overloaded, match="full"),
                    work.running(*asking(MINE, 30, 1)),
                ):
                    raise AssertionError("it was let in")
        with work.running(*asking(MINE, 30, 1)):
            pass

    asyncio.run(run())
