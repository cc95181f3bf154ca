"""Who decodes is asked for when a prompt is prefilled, and a call waits for room."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from kvstore.conductor.decision import RETRY_MS_MIN
from kvstore.conductor.scheduling import WAIT_MS_MAX
from kvstore.limits import RPC_UNARY_MAX
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, asked, decoded_by, engine, scheduled
from tests.nodes import CALL_SECONDS, Refusal, eventually, refused
from tests.pools import ConductorProcess, pool


@pytest.fixture
def conductor() -> Iterator[ConductorProcess]:
    with pool() as nodes:
        yield nodes.conductor()


def reporting(conductor: ConductorProcess, name: str, **fields: object) -> Reporting:
    """An engine that has begun to report."""
    return Reporting(conductor.address, pb.ReportRequest(engine=engine(name, **fields)))


def scheduled_to(conductor: ConductorProcess) -> tuple[str, str]:
    try:
        reply = scheduled(conductor.stub, "probe")
    except grpc.RpcError:
        return "", ""
    return reply.prefill.engine_id, reply.decode.engine_id


def test_decoding_is_asked_for_when_the_prompt_is_prefilled(conductor: ConductorProcess) -> None:
    with (
        reporting(conductor, "prefills", decode=None),
        reporting(conductor, "decodes", prefill=None, room_tokens=1_000) as decoder,
    ):
        eventually(lambda: scheduled_to(conductor) == ("prefills", "decodes"))
        reply = scheduled(conductor.stub, "one", phase=pb.DECODE, tokens=400)
        assert reply.decode.engine_id == "decodes" and not reply.HasField("prefill")
        two = asked("two", phase=pb.DECODE, tokens=400)
        said = refused(lambda: conductor.stub.Schedule(two, timeout=CALL_SECONDS))
        explained = conductor.stub.Explain(pb.ExplainRequest(request=two), timeout=CALL_SECONDS)
        assert explained.sentence == said.text
        assert said.kind == "Overloaded" and said.retry_after_ms > 0
        decoder.say(given_up=["one"])
        eventually(lambda: decoded_by(conductor.stub, "two") == "decodes")


def test_a_call_waits_for_room_and_is_answered_as_soon_as_there_is_some(
    conductor: ConductorProcess,
) -> None:
    with (
        ThreadPoolExecutor(2) as callers,
        reporting(conductor, "decodes", room_tokens=1_000) as decoder,
    ):
        eventually(lambda: decoded_by(conductor.stub, "one") == "decodes")
        decoder.say(load=pb.ReportRequest.Load(batch=1, context_tokens=1_000))
        two = asked("two", phase=pb.DECODE, tokens=400)
        eventually(lambda: refused(lambda: conductor.stub.Schedule(two)).kind == "Overloaded")
        two.wait_ms, since = 300, time.monotonic()
        assert refused(lambda: conductor.stub.Schedule(two)).kind == "Overloaded"
        assert time.monotonic() - since >= 0.3
        decoder.say(given_up=["one"], load=pb.ReportRequest.Load())
        numbers = itertools.count()

        def answered_before_its_time_is_over() -> bool:
            """On a busy machine room may come too late for a call: then it is tried once more."""
            one, two = (f"{name} {next(numbers)}" for name in ("one", "two"))
            eventually(lambda: decoded_by(conductor.stub, one) == "decodes")
            asking, since = asked(two, phase=pb.DECODE, tokens=400, wait_ms=1_000), time.monotonic()
            waiting = callers.submit(conductor.stub.Schedule, asking)
            time.sleep(0.1)
            waited = not waiting.done()
            decoder.say(given_up=[one])
            answered = waiting.exception() is None and time.monotonic() - since < 1.0
            decoder.say(given_up=[two])
            return waited and answered

        eventually(answered_before_its_time_is_over)


def test_those_who_wait_for_room_leave_others_a_place_to_be_asked_in(
    conductor: ConductorProcess,
) -> None:
    """More calls wait for room than are served at once; a prompt is scheduled meanwhile, and not
    after them."""
    with (
        reporting(conductor, "prefills", decode=None),
        reporting(conductor, "decodes", prefill=None, room_tokens=1_000) as decoder,
    ):
        eventually(lambda: scheduled_to(conductor) == ("prefills", "decodes"))
        decoder.say(load=pb.ReportRequest.Load(batch=1, context_tokens=1_000))
        eventually(lambda: not decoded_by(conductor.stub, "probe"))
        calls: list[Any] = []

        def scheduled_while_others_wait() -> bool:
            calls.clear()
            for number in range(2 * RPC_UNARY_MAX):
                wants = asked(f"{number}", phase=pb.DECODE, tokens=400, wait_ms=WAIT_MS_MAX)
                calls.append(conductor.stub.Schedule.future(wants, timeout=CALL_SECONDS))
            conductor.stub.Schedule(asked("another"), timeout=CALL_SECONDS)
            over = [Refusal(one.exception()) for one in calls if one.done()]
            # Who may not wait stays away for longer than who has waited in vain.
            return all(one.retry_after_ms > RETRY_MS_MIN for one in over)

        eventually(scheduled_while_others_wait)
        refusals = [Refusal(one.exception()) for one in calls]
    assert {one.kind for one in refusals} == {"Overloaded"}
    stay_away = [one.retry_after_ms > RETRY_MS_MIN for one in refusals]
    assert any(stay_away) and not all(stay_away)


def test_who_waits_for_room_for_longer_than_its_target_is_told_to_give_up(
    conductor: ConductorProcess,
) -> None:
    with reporting(conductor, "decodes", room_tokens=1_000) as decoder:
        eventually(lambda: decoded_by(conductor.stub, "one") == "decodes")
        decoder.say(load=pb.ReportRequest.Load(batch=1, context_tokens=1_000))
        two = asked("two", phase=pb.DECODE, tokens=400, ttft_ms=300, wait_ms=500)
        eventually(lambda: refused(lambda: conductor.stub.Schedule(two)).kind == "TooLate")
        two.wait_ms = 1_001
        assert "at most 1000" in refused(lambda: conductor.stub.Schedule(two)).text
