"""What is given up is said to whoever planned it, beside the caller, and is dropped where it
cannot be."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

from kvstore.client import given_up as module
from kvstore.client.conductors import Conductors
from kvstore.client.given_up import GivenUp
from kvstore.errors import Overloaded, Unavailable
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.client.test_conductors import Double, served
from tests.conductor.reporting import Reporting, asked, engine, scheduled
from tests.nodes import CALL_SECONDS, eventually
from tests.pools import ConductorProcess, pool

SPACE = (b"n" * 32, 0)


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is late because this machine is busy."""
    monkeypatch.setattr("kvstore.client.conductors.ANSWER_SECONDS", 60.0)


class Hears(Double):
    """And remembers what was given up."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: list[str] = []

    def GiveUp(self, request: pb.GiveUpRequest, context: Any) -> pb.GiveUpReply:
        if not self.up:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.given_up += request.request_ids
        return pb.GiveUpReply()


class Slow:
    """Takes its time over the first message."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def say(self, by: str, request: pb.GiveUpRequest) -> None:
        self.said.append(list(request.request_ids))
        self.begun.set()
        assert self.goes_on.wait(CALL_SECONDS)


def given_up_meanwhile(slow: Slow, *requests: str) -> None:
    """While the first, that is `0`, is said."""
    given_up = GivenUp(slow.say)
    for request in ("0", *requests):
        given_up.planned(request, "a")
    given_up.add(SPACE, "0")
    assert slow.begun.wait(CALL_SECONDS)
    for request in requests:
        given_up.add(SPACE, request)
    slow.goes_on.set()


def placed(conductor: ConductorProcess, request: str) -> bool:
    try:
        return bool(scheduled(conductor.stub, request).prefill.engine_id)
    except grpc.RpcError:
        return False


def test_the_conductor_that_planned_it_is_told_once_and_no_other() -> None:
    one, other = Hears(), Hears()
    with served(one) as first, served(other) as second, Conductors([first, second]) as conductors:
        planners = {}
        for request in ("a", "b"):
            assert conductors.schedule(asked(request))
            planners[request] = one if conductors.first == first else other
            planners[request].up = False  # so the other plans the next
        one.up = other.up = True
        for request in ("a", "b", "a", "never planned"):
            conductors.give_up(asked(request))
        eventually(lambda: len(one.given_up) == len(other.given_up) == 1)
        assert all(planners[request].given_up == [request] for request in ("a", "b"))


def test_a_prompt_that_is_given_up_leaves_its_room_to_others() -> None:
    with pool() as nodes:
        conductor = nodes.conductor()
        first = pb.ReportRequest(engine=engine("one", prefill=pb.ReportRequest.Cost(a=10.0)))
        with Reporting(conductor.address, first), Conductors([conductor.address]) as conductors:
            eventually(lambda: conductors.schedule(asked("0")) is not None)
            with pytest.raises(Overloaded):
                conductors.schedule(asked("another"))
            conductors.give_up(asked("0"))
            eventually(lambda: placed(conductor, "another"))
            assert not placed(conductor, "one more")


def test_who_gives_up_waits_for_nobody_and_what_comes_meanwhile_goes_together() -> None:
    slow = Slow()
    given_up_meanwhile(slow, "1", "2")
    eventually(lambda: slow.said == [["0"], ["1", "2"]])


def test_what_finds_no_place_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSAID_MAX", 2)
    slow = Slow()
    given_up_meanwhile(slow, "1", "2", "3")
    eventually(lambda: len(slow.said) == 2)
    assert slow.said == [["0"], ["1", "2"]]


def test_of_many_that_were_planned_those_first_planned_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PLANNED_KEPT", 2)
    slow = Slow()
    slow.goes_on.set()
    given_up = GivenUp(slow.say)
    for request in ("1", "2", "1", "3"):
        given_up.planned(request, "a")
    for request in ("1", "2", "3"):
        given_up.add(SPACE, request)
    eventually(lambda: [one for said in slow.said for one in said] == ["1", "3"])


def test_a_conductor_that_does_not_take_it_is_told_of_the_next() -> None:
    double = Hears()
    with served(double) as address, Conductors([address]) as conductors:
        for request in ("lost", "said"):
            assert conductors.schedule(asked(request))
        double.up = False
        conductors.give_up(asked("lost"))
        eventually(lambda: not conductors._given_up._saying)
        double.up = True
        conductors.give_up(asked("said"))
        eventually(lambda: double.given_up == ["said"])
    conductors.give_up(asked("said"))


def test_where_no_thread_is_left_it_is_said_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise Unavailable("no thread")

    slow = Slow()
    slow.goes_on.set()
    given_up = GivenUp(slow.say)
    for request in ("1", "2"):
        given_up.planned(request, "a")
    with monkeypatch.context() as patched:
        patched.setattr(module, "begin_thread", none)
        given_up.add(SPACE, "1")
    assert not slow.said
    given_up.add(SPACE, "2")
    eventually(lambda: slow.said == [["1", "2"]])
