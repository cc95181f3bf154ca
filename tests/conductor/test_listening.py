"""How much of a conductor's time the reports of one tenant take, over however many streams."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.clock import SimClock
from kvstore.conductor import scheduling
from kvstore.conductor.listening import TENANT_SHARE, Listening
from kvstore.conductor.reports import Reporter
from kvstore.conductor.scheduling import SchedulingService
from kvstore.limits import REPORT_SILENCE_SECONDS
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import Rig
from tests.conductor.reporting import engine

SECONDS, MESSAGE_SECONDS = 20.0, 0.005


class Busy(SimClock):
    """Work takes time, and nothing else runs meanwhile."""

    def work(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        due = self.now() + seconds
        while (left := due - self.now()) > 0:
            await super().sleep(left)

    async def advance(self, seconds: float) -> None:
        end = self.now() + seconds
        while self.now() < end:
            self._sleepers = [(max(self.now(), at), n, one) for at, n, one in self._sleepers]
            await super().advance(min(0.001, end - self.now()))


def reported(
    monkeypatch: pytest.MonkeyPatch, streams: dict[str, tuple[int, float]]
) -> Counter[str]:
    """Messages that were taken of each tenant, over so many streams and each of which has one all
    so many seconds; each takes a while."""
    clock, taken = Busy(), Counter[str]()

    class Slow:
        def __init__(self, _: Any, tenant: str, secret: Any) -> None:
            self._tenant = tenant

        def waits(self) -> None: ...

        def take(self, message: pb.ReportRequest, now: float) -> None:
            clock.work(MESSAGE_SECONDS)
            taken[self._tenant] += 1

        def end(self, now: float) -> None: ...

    async def requests(every: float) -> AsyncIterator[pb.ReportRequest]:
        while True:
            yield pb.ReportRequest()
            if every:
                await clock.sleep(every)

    async def run() -> None:
        others: Any = SimpleNamespace(secrets={})
        service = SchedulingService(others, others, Rig().scheduler, clock, others)

        async def report(tenant: str, every: float) -> None:
            CALLER.set(Caller(Role.CLIENT, "one", tenant))
            await service.Report(requests(every), others)

        tasks = [
            asyncio.create_task(report(tenant, every))
            for tenant, (count, every) in streams.items()
            for _ in range(count)
        ]
        await clock.advance(SECONDS)
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.setattr(scheduling, "Reporter", Slow)
    asyncio.run(run())
    return taken


def test_however_many_streams_a_tenant_reports_on_they_have_their_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = reported(monkeypatch, {"many": (60, 0.0), "one": (1, 0.5)})
    assert taken["many"] * MESSAGE_SECONDS < 1.1 * TENANT_SHARE * SECONDS
    assert taken["many"] * MESSAGE_SECONDS > 0.7 * TENANT_SHARE * SECONDS
    assert taken["one"] > 0.8 * SECONDS / 0.5, "who says little is heard as before"


def test_a_tenant_that_is_alone_is_heard_as_often_as_it_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = reported(monkeypatch, {"many": (60, 0.0)})
    assert taken["many"] * MESSAGE_SECONDS > 0.9 * SECONDS


def test_what_a_loop_oversleeps_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes far less than a loop sleeps at least."""
    sleep = Busy.sleep

    async def coarsely(clock: Busy, seconds: float) -> None:
        await sleep(clock, max(0.001, seconds))

    monkeypatch.setattr(Busy, "sleep", coarsely)
    monkeypatch.setattr(sys.modules[__name__], "MESSAGE_SECONDS", 5e-5)
    taken = reported(monkeypatch, {"many": (100, 0.02), "one": (1, 0.5)})
    assert taken["many"] > 0.6 * 100 * SECONDS / 0.02, "each is taken within the pace of a stream"


def test_engines_that_say_little_are_all_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = reported(monkeypatch, {"many": (20, 1.0)})
    assert taken["many"] > 0.9 * 20 * SECONDS


def test_a_stream_that_ends_and_begins_anew_gains_no_time() -> None:
    clock, worked = Busy(), list[float]()

    async def one() -> None:
        async with listening.turn("a"):
            clock.work(MESSAGE_SECONDS)
            worked.append(clock.now())

    async def run() -> None:
        for _ in range(20):
            async with listening.turn("b"):
                pass
            tasks = [asyncio.create_task(one()) for _ in range(5)]
            await clock.advance(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    listening = Listening(clock)
    asyncio.run(run())
    assert len(worked) * MESSAGE_SECONDS < 1.1 * TENANT_SHARE * clock.now()


def test_tenants_whose_time_is_over_are_forgotten() -> None:
    clock = Busy()

    async def run() -> None:
        for number in range(50):
            async with listening.turn(f"{number}"):
                clock.work(MESSAGE_SECONDS)
            await clock.advance(2.1)
            listening.check()
            assert len(listening) <= 2

    listening = Listening(clock)
    asyncio.run(run())


def test_who_stood_still_over_a_message_listens_again_soon() -> None:
    clock, waited = Busy(), list[float]()

    async def run() -> None:
        async with listening.turn("b"):
            pass
        async with listening.turn("a"):
            clock.work(1.9)
        since = clock.now()
        task = asyncio.create_task(again())
        await clock.advance(10.0)
        await task
        waited.append(waited.pop() - since)

    async def again() -> None:
        async with listening.turn("a"):
            waited.append(clock.now())

    listening = Listening(clock)
    asyncio.run(run())
    assert waited[0] < REPORT_SILENCE_SECONDS / 2


def test_an_engine_whose_message_waits_for_its_turn_is_not_silent() -> None:
    rig = Rig()
    reporter = Reporter(rig.scheduler, "team", lambda: None)
    reporter.waits()  # before it has said who it is
    reporter.take(pb.ReportRequest(engine=engine("a")), rig.now)
    reporter.waits()
    rig.now += 10 * REPORT_SILENCE_SECONDS
    rig.scheduler.stood_still(1.0, rig.now)
    assert not rig.scheduler.sweep(rig.now)
    reporter.take(pb.ReportRequest(), rig.now)
    rig.now += REPORT_SILENCE_SECONDS
    assert rig.scheduler.sweep(rig.now) == ["a"]
