"""What the Engine service takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.conductor.reports import _check as check_report
from kvstore.engine.core import FinishEvent
from kvstore.engine.sequence import Finish
from kvstore.engine.service import EngineService
from kvstore.engine.service import _checked as check_id
from kvstore.engine.worker import Job, Started
from kvstore.errors import Invalid
from kvstore.limits import REQUEST_ID_BYTES_MAX
from kvstore.wire.v1 import conductor_pb2, engine_pb2


def reported(request_id: str) -> None:
    """Raises `Invalid` where a conductor ends the stream by it."""
    accepted = conductor_pb2.ReportRequest.Accepted(request_id=request_id, tokens=1)
    check_report(conductor_pb2.ReportRequest(accepted=[accepted]), 4)


@pytest.mark.parametrize("request_id", ["r", "cmpl-1 try 2", "é", "x" * REQUEST_ID_BYTES_MAX])
def test_an_id_is_one_that_conductors_take(request_id: str) -> None:
    reported(check_id(request_id))


@pytest.mark.parametrize("request_id", ["", "a\nb", "é" * 200, "x" * (REQUEST_ID_BYTES_MAX + 1)])
def test_an_id_by_which_a_report_would_end_is_refused(request_id: str) -> None:
    with pytest.raises(Invalid):
        reported(request_id)
    with pytest.raises(Invalid, match="request_id must be"):
        check_id(request_id)


class Ends:
    """A worker by which each job is over as soon as it is there."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        model = SimpleNamespace(config=SimpleNamespace(eos_ids=()))
        self.core = SimpleNamespace(model=model)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        job.use.pool_tokens, job.use.miss = 2, "absent"
        job.tell(Started(job.use, 3))
        if job.use.reserved is not None:
            job.use.reserved((b"window",))
        job.tell(FinishEvent(job.request.id, Finish.LENGTH, (7,), 0))

    def cancel(self, job: Job) -> None:
        pass


async def said(replies: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in replies]


@pytest.mark.parametrize("call, told", [("Prefill", [b"window"]), ("Generate", [])])
def test_a_hand_off_is_for_whoever_passes_it_on_and_nobody_else_waits_for_one(
    call: str, told: list[bytes]
) -> None:
    ends: Any = Ends()
    service = EngineService(ends, "both", "model", b"")
    request = getattr(engine_pb2, f"{call}Request")(request_id="r", prompt=[1, 2, 3])

    replies = asyncio.run(said(getattr(service, call)(request, None)))
    found = [one for one in replies if one.WhichOneof("part") == "hand_off"]
    assert [handle for one in found for handle in one.hand_off.handles] == told
    assert (ends.jobs[0].use.reserved is not None) == bool(told)


def test_a_prefill_says_what_it_reused_and_why_no_more() -> None:
    ends: Any = Ends()
    service = EngineService(ends, "prefill", "model", b"")
    request = engine_pb2.PrefillRequest(request_id="r", prompt=[1, 2, 3, 4, 5])
    done = asyncio.run(said(service.Prefill(request, None)))[-1].done
    assert (done.reused_tokens, done.computed_tokens, done.miss) == (2, 3, "absent")
