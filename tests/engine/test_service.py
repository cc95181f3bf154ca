"""What the Engine service takes."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from kvstore.conductor.reports import _check as check_report
from kvstore.engine.core import FinishEvent
from kvstore.engine.errors import RequestTooLong
from kvstore.engine.scheduler import Limits, Scheduler, refusal
from kvstore.engine.sequence import Finish, Request
from kvstore.engine.service import EngineService
from kvstore.engine.service import _checked as check_id
from kvstore.engine.worker import Job, Started
from kvstore.errors import Invalid
from kvstore.limits import REQUEST_ID_BYTES_MAX, MiB
from kvstore.wire.v1 import conductor_pb2, engine_pb2
from tests.nodes import SPEC


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


ROOM = 40


class Ends:
    """A worker by which each job is over as soon as it is there."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        model = SimpleNamespace(config=SimpleNamespace(eos_ids=()))
        limits = Limits(max_request_tokens=ROOM)
        self.core = SimpleNamespace(model=model, scheduler=Scheduler(limits))

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
    service = EngineService(ends, "both", "model", SPEC)
    request = getattr(engine_pb2, f"{call}Request")(request_id="r", prompt=[1, 2, 3])

    replies = asyncio.run(said(getattr(service, call)(request, None)))
    found = [one for one in replies if one.WhichOneof("part") == "hand_off"]
    assert [handle for one in found for handle in one.hand_off.handles] == told
    assert (ends.jobs[0].use.reserved is not None) == bool(told)


def test_a_prefill_says_what_it_reused_and_why_no_more() -> None:
    ends: Any = Ends()
    service = EngineService(ends, "prefill", "model", SPEC)
    request = engine_pb2.PrefillRequest(request_id="r", prompt=[1, 2, 3, 4, 5])
    done = asyncio.run(said(service.Prefill(request, None)))[-1].done
    assert (done.reused_tokens, done.computed_tokens, done.miss) == (2, 3, "absent")


def submitted(prompt: int, **fields: Any) -> Request:
    """What the engine is to run, of a request with a prompt of so many tokens."""
    ends: Any = Ends()
    service = EngineService(ends, "both", "model", SPEC)
    asked = engine_pb2.GenerateRequest(request_id="r", prompt=range(prompt), **fields)

    async def replies() -> list[Any]:
        return [one async for one in service.Generate(asked, None)]

    asyncio.run(replies())
    (job,) = ends.jobs
    assert isinstance(job.request, Request)
    return job.request


def test_of_as_many_tokens_as_fit_an_engine_gives_what_it_has_place_for() -> None:
    assert submitted(10, max_new_tokens=90, as_many_as_fit=True).max_new_tokens == ROOM - 10
    assert submitted(10, max_new_tokens=3, as_many_as_fit=True).max_new_tokens == 3
    assert submitted(ROOM - 1, max_new_tokens=90, as_many_as_fit=True).max_new_tokens == 1


@pytest.mark.parametrize("fields", [{}, {"max_new_tokens": 90}])
def test_as_many_tokens_as_somebody_asked_for_are_given_or_refused(fields: Any) -> None:
    asked = submitted(10, **fields)
    assert asked.max_new_tokens == fields.get("max_new_tokens", 0)
    assert refusal(asked, Limits(max_request_tokens=ROOM)) is not None


def test_a_prompt_behind_which_no_token_fits_is_refused() -> None:
    asked = submitted(ROOM, max_new_tokens=90, as_many_as_fit=True)
    assert isinstance(refusal(asked, Limits(max_request_tokens=ROOM)), RequestTooLong)


def refused(
    call: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT, **fields: Any
) -> str:
    """In which words; nothing of it is to run."""
    ends, context = Ends(), Mock()
    worker: Any = ends
    service = EngineService(worker, "both", "model", SPEC)
    request = getattr(engine_pb2, f"{call}Request")(request_id="r", **fields)
    asyncio.run(said(getattr(service, call)(request, context)))
    assert not ends.jobs
    context.set_code.assert_called_once_with(code)
    return str(context.set_details.call_args.args[0])


@pytest.mark.parametrize("call", ["Prefill", "Generate"])
def test_a_prompt_for_which_there_is_never_room_is_counted_and_not_read(call: str) -> None:
    prompt = [7] * (2 * MiB)
    tracemalloc.start()
    try:
        why = refused(call, prompt=prompt)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{2 * MiB} prompt tokens are more than the {ROOM} that fit" in why
    assert most < 8 * MiB, "a tuple of them has 8 bytes for each"


@pytest.mark.parametrize("call", ["Prefill", "Generate"])
def test_what_is_asked_of_other_weights_is_for_another_engine(call: str) -> None:
    why = refused(call, grpc.StatusCode.UNAVAILABLE, prompt=[1, 2], revision="others")
    assert f"has other weights than it was asked for: {SPEC.revision}" in why


@pytest.mark.parametrize("named", [{}, {"revision": SPEC.revision}])
def test_what_is_asked_of_its_weights_or_of_any_runs(named: Any) -> None:
    assert submitted(2, **named).prompt == (0, 1)


def test_windows_of_more_blocks_than_a_prompt_can_have_are_refused() -> None:
    many = engine_pb2.HandOff(handles=[b"window"] * 11)
    assert submitted(11, hand_off=many).follows
    why = refused("Generate", prompt=range(10), hand_off=many)
    assert "hand_off has 11 handles for 10 tokens" in why
