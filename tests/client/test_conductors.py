"""A caller of several conductors, real ones and such that do not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import pytest

from kvstore.client import conductors as module
from kvstore.client.conductors import Conductors
from kvstore.client.reporter import Reporter
from kvstore.errors import Broken, Denied, Invalid, KVStoreError, Overloaded, Unavailable
from kvstore.rpc.status import refuse
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc
from tests.conductor.reporting import asked, engine
from tests.nodes import eventually
from tests.pools import ConductorProcess, Nodes, pool

PLAN = pb.ScheduleReply(prefill=pb.ScheduleReply.Place(engine_id="e", address="127.0.0.1:1"))


class Double(conductor_pb2_grpc.ConductorServicer):
    """Answers so while it is `up`, and counts who asks."""

    def __init__(self) -> None:
        self.up, self.asked = True, 0
        self._lock = threading.Lock()

    def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
        with self._lock:
            self.asked += 1
        if not self.up:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return PLAN


@contextmanager
def served(double: Double) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8))
    conductor_pb2_grpc.add_ConductorServicer_to_server(double, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is late because this machine is busy."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who did not answer is not tried again in this test."""
    for name in ("PAUSE_SECONDS_MIN", "PAUSE_SECONDS_MAX"):
        monkeypatch.setattr(module, name, 3_600.0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


@pytest.fixture(scope="module")
def two(nodes: Nodes) -> dict[str, ConductorProcess]:
    made = (nodes.conductor("first"), nodes.conductor("second"))
    return {one.address: one for one in made}


def knows(one: Conductors) -> bool:
    return one.schedule(asked("probe", tokens=10)) is not None


def test_a_request_that_nobody_could_serve_in_time_is_refused_with_a_time_to_come_back(
    two: dict[str, ConductorProcess],
) -> None:
    with closing(Reporter(engine("one"), list(two))), Conductors(list(two)) as conductors:
        eventually(lambda: knows(conductors))
        with pytest.raises(Overloaded) as refused:
            conductors.schedule(asked("too long", tokens=50_000))
        assert refused.value.retry_after_ms > 0
        assert knows(conductors), "a refusal is an answer: nobody rests for that"


def test_conductors_that_know_nobody_for_one_request_are_asked_about_others(
    two: dict[str, ConductorProcess],
) -> None:
    with closing(Reporter(engine("one"), list(two))), Conductors(list(two)) as conductors:
        eventually(lambda: knows(conductors))
        assert conductors.schedule(asked("another kind", namespace=bytes(32))) is None
        assert knows(conductors), "they are there, and know who is meant now"


def test_where_one_does_not_know_a_large_engine_yet_the_next_is_asked() -> None:
    class Begins(Double):
        def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
            self.asked += 1
            refuse(context, Unavailable("those that have reported by now are smaller", 1_000))
            return pb.ScheduleReply()

    begins, knows_it = Begins(), Double()
    with (
        served(begins) as first,
        served(knows_it) as second,
        Conductors([first, second]) as conductors,
        Conductors([first]) as alone,
    ):
        assert conductors.schedule(pb.ScheduleRequest()) == PLAN
        assert [alone.schedule(pb.ScheduleRequest()) for _ in range(2)] == [None, None]
    assert begins.asked >= 2, "it has answered, and is asked again"


def test_a_conductor_that_is_wrongly_asked_says_so(two: dict[str, ConductorProcess]) -> None:
    with Conductors(list(two)) as conductors, pytest.raises(Invalid, match="tokens = 0"):
        conductors.schedule(asked("r", tokens=0))


def test_of_two_conductors_one_that_is_killed_costs_no_request(
    two: dict[str, ConductorProcess],
) -> None:
    with closing(Reporter(engine("one"), list(two))), Conductors(list(two)) as conductors:
        for address in two:  # both know the engine
            with Conductors([address]) as alone:
                eventually(lambda alone=alone: knows(alone))
        stuck_to = conductors.first
        for number in range(20):
            assert conductors.schedule(asked(f"a{number}", tokens=10)) is not None
            assert conductors.first == stuck_to
        two[stuck_to].kill()
        for number in range(20):
            plan = conductors.schedule(asked(f"b{number}", tokens=10))
            assert plan is not None and plan.prefill.engine_id == "one"
        assert conductors.first != stuck_to
        two[conductors.first].kill()
        assert conductors.schedule(asked("c", tokens=10)) is None


def test_who_does_not_answer_is_left_alone(patient: None) -> None:
    dead, alive = Double(), Double()
    dead.up = False
    with served(dead) as first, served(alive) as second, Conductors([first, second]) as conductors:
        assert all(conductors.schedule(pb.ScheduleRequest()) == PLAN for _ in range(50))
        assert dead.asked <= 1 and alive.asked == 50
        alive.up = False
        assert all(conductors.schedule(pb.ScheduleRequest()) is None for _ in range(50))
        assert dead.asked == 1 and alive.asked == 51, "each was tried once more, and no more"


def test_who_is_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MIN", 0.01)
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 0.02)
    only = Double()
    with served(only) as address, Conductors([address]) as conductors:
        only.up = False
        assert conductors.schedule(pb.ScheduleRequest()) is None
        only.up = True
        eventually(lambda: conductors.schedule(pb.ScheduleRequest()) == PLAN)


@pytest.mark.parametrize("wrong", [Invalid("tokens = 0"), Denied("another tenant's engines")])
def test_who_is_back_and_says_that_a_request_is_wrong_is_asked_about_others_at_once(
    monkeypatch: pytest.MonkeyPatch, wrong: KVStoreError
) -> None:
    for name in ("PAUSE_SECONDS_MIN", "PAUSE_SECONDS_MAX"):
        monkeypatch.setattr(module, name, 0.0)

    class Refuses(Double):
        def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
            if self.up and request.request_id == "wrong":
                refuse(context, wrong)
            return super().Schedule(request, context)

    only = Refuses()
    only.up = False
    with served(only) as address, Conductors([address]) as conductors:
        assert conductors.schedule(pb.ScheduleRequest()) is None
        only.up = True
        with pytest.raises(type(wrong), match=str(wrong)):
            conductors.schedule(pb.ScheduleRequest(request_id="wrong"))
        assert conductors.schedule(pb.ScheduleRequest()) == PLAN


def test_many_callers_at_once_wait_for_a_dead_conductor_once_each_at_most(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.25)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it lets in, and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Conductors([address]) as conductors, ThreadPoolExecutor(8) as callers:
            asks = [callers.submit(conductors.schedule, pb.ScheduleRequest()) for _ in range(200)]
            assert all(one.result() is None for one in asks)


def test_a_moment_in_which_nobody_is_answered_is_one_failure_however_many_ask_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MIN", 1.0)
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 3_600.0)
    all_ask = threading.Barrier(8)

    class StandsStill(Double):
        def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
            if not self.up:
                all_ask.wait(60)
            return super().Schedule(request, context)

    only = StandsStill()
    only.up = False
    with served(only) as address, Conductors([address]) as conductors:
        with ThreadPoolExecutor(8) as callers:
            asks = [callers.submit(conductors.schedule, pb.ScheduleRequest()) for _ in range(8)]
            assert all(one.result() is None for one in asks)
        only.up = True
        # Eight failures would be two minutes of rest.
        eventually(lambda: conductors.schedule(pb.ScheduleRequest()) == PLAN)


def test_of_those_that_come_after_a_rest_one_tries_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MIN", 0.0)
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 3_600.0)
    held, entered = threading.Event(), threading.Event()

    class Slow(Double):
        def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
            entered.set()
            held.wait(60)
            return super().Schedule(request, context)

    slow = Slow()
    slow.up = False
    held.set()
    with served(slow) as address, Conductors([address]) as conductors:
        assert conductors.schedule(pb.ScheduleRequest()) is None
        held.clear()
        entered.clear()
        with ThreadPoolExecutor(1) as caller:
            tries = caller.submit(conductors.schedule, pb.ScheduleRequest())
            assert entered.wait(60)
            assert conductors.schedule(pb.ScheduleRequest()) is None, "the other tries it"
            slow.up = True
            held.set()
            assert tries.result() == PLAN


def test_without_conductors_there_is_no_plan() -> None:
    with Conductors([]) as conductors:
        assert conductors.schedule(pb.ScheduleRequest()) is None and conductors.first == ""


class Lists(Double):
    """Names one crew, as often as it is asked."""

    def Crews(self, request: pb.CrewsRequest, context: Any) -> pb.CrewsReply:
        self.asked += 1
        return pb.CrewsReply(crews=[pb.CrewsReply.Crew(revision=request.revision)])


def test_who_serves_is_heard_of_the_first_conductor_that_answers_and_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.random, "shuffle", lambda _: None)  # the silent ones come first
    first, second = Lists(), Lists()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
        addresses += [stack.enter_context(served(one)) for one in (first, second)]
        conductors = stack.enter_context(Conductors(addresses))
        began = time.monotonic()
        said = iter(conductors.crews("w", 5.0))
        _, reply = next(said)
        assert isinstance(reply, pb.CrewsReply) and reply.crews[0].revision == "w"
        assert time.monotonic() - began < 5.0, "a silent one is not waited for"
        errors = {at: str(one) for at, one in said if isinstance(one, KVStoreError)}
        assert first.asked == second.asked == 1
        assert errors == {at: f"{at} did not answer within the deadline" for at in addresses[:3]}
        assert time.monotonic() - began < 10.0, "all are waited for at once"


def test_a_thread_that_still_asks_when_they_are_closed_hears_nothing() -> None:
    with served(Double()) as address:
        conductors = Conductors([address])
        conductors.close()
        assert not list(conductors.crews("r1", 1.0))
        assert conductors.schedule(pb.ScheduleRequest()) is None
        with pytest.raises(Unavailable, match="closed"):
            conductors.explain("r1")


def test_of_a_request_that_is_not_explained_it_says_what_each_conductor_said() -> None:
    def explained(*addresses: str) -> None:
        with Conductors(addresses) as conductors:
            conductors.explain("r1")

    with served(Double()) as other, pytest.raises(Broken, match=f"{other} does not know this call"):
        explained(other)
    with pool() as nodes:
        alive, dead = nodes.conductor("alive"), nodes.conductor("dead")
        unknown = f"{alive.address} says that request_id names none"
        with pytest.raises(Invalid, match=unknown):
            explained(alive.address)
        dead.kill()
        with pytest.raises(Unavailable) as said:
            explained(alive.address, dead.address)
        assert f"{dead.address} cannot be reached" in str(said.value)
        assert unknown in str(said.value)
    with pytest.raises(Invalid, match="no conductor is asked"):
        explained()
