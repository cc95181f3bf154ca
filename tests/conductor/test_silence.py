"""Who is held for silent: whoever says nothing while a conductor listens, and nobody else."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from kvstore.conductor.scheduling import SWEEP_SECONDS, SchedulingService
from kvstore.conductor.silence import heard_within
from kvstore.limits import REPORT_SILENCE_SECONDS
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import Rig
from tests.conductor.reporting import Reporting, engine, scheduled
from tests.nodes import eventually
from tests.pools import ConductorProcess, pool


def test_who_says_nothing_for_so_long_is_silent() -> None:
    async def listen() -> None:
        async with heard_within(0.05):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(listen())


def test_what_was_said_while_the_loop_stood_still_is_heard() -> None:
    async def listen() -> str:
        loop = asyncio.get_running_loop()
        said: asyncio.Future[str] = loop.create_future()

        def stand_still() -> None:
            telling = (said.set_result, "it")
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=telling)
            thread.start()
            time.sleep(0.3)
            thread.join()

        loop.call_later(0.01, stand_still)
        async with heard_within(0.1):
            return await said

    assert asyncio.run(listen()) == "it"


def sends_to(conductor: ConductorProcess) -> str:
    """The engine that a request is sent to; empty if to nobody."""
    try:
        return scheduled(conductor.stub, "r").prefill.engine_id
    except grpc.RpcError:
        return ""


def test_a_conductor_that_stood_still_reads_what_engines_said_meanwhile() -> None:
    with pool() as nodes:
        conductor = nodes.conductor()
        first = pb.ReportRequest(engine=engine("a"))
        with Reporting(conductor.address, first) as stream:
            eventually(lambda: sends_to(conductor) == "a")
            conductor.signal(signal.SIGSTOP)
            try:
                time.sleep(REPORT_SILENCE_SECONDS + 1)
            finally:
                conductor.signal(signal.SIGCONT)
            for _ in range(5):  # while it looks who is silent
                assert sends_to(conductor) == "a"
                time.sleep(SWEEP_SECONDS)
            assert not stream.call.done()


class Slow:
    """A clock by which each message takes a second."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._now = 0.0

    def now(self) -> float:
        self._now += 1.0
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_an_engine_whose_report_took_long_is_listened_to_again_before_it_seems_silent() -> None:
    clock, nobody = Slow(), Rig()

    async def requests() -> AsyncIterator[pb.ReportRequest]:
        yield pb.ReportRequest(engine=engine("a"))
        yield pb.ReportRequest()

    async def report() -> None:
        CALLER.set(Caller(Role.CLIENT, "a", "default"))
        others: Any = SimpleNamespace(secrets={})
        service = SchedulingService(others, others, nobody.scheduler, clock, others)
        assert await service.Report(requests(), others) == pb.ReportReply()

    asyncio.run(report())
    assert len(clock.slept) == 2 and max(clock.slept) < REPORT_SILENCE_SECONDS / 2
