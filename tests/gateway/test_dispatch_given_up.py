"""What a dispatcher says of a request that it does not send where a planner had it go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.errors import Overloaded, TooLate
from kvstore.gateway.caller import Caller, CallerLeft
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import One
from kvstore.logprobs import Logprobs
from kvstore.wire.v1 import conductor_pb2
from kvstore.wire.v1 import engine_pb2 as pb
from tests.gateway.engine_doubles import (
    PROMPT,
    TOKENS,
    Double,
    Endless,
    Nobody,
    Planner,
    run,
    serving,
)
from tests.nodes import SPEC


class Leaves(Planner):
    """Its caller does, as soon as it has a plan: no engine hears of it, or not for long."""

    def __init__(self, *places: str, caller: Caller) -> None:
        super().__init__(*places)
        self._caller = caller

    def schedule(
        self, request: conductor_pb2.ScheduleRequest
    ) -> conductor_pb2.ScheduleReply | None:
        plan = super().schedule(request)
        self._caller.leave()
        return plan


@pytest.mark.parametrize("alone", [True, False])
def test_one_whose_caller_leaves_before_its_engine_says_a_word_is_given_up(alone: bool) -> None:
    first, second, caller = Double(), Double(), Caller()
    with serving(first, second):
        places = (first.address, first.address if alone else second.address)
        planner = Leaves(*places, caller=caller)
        dispatcher = Dispatcher(planner, One(SPEC), (), OPEN)
        with pytest.raises(CallerLeft):
            dispatcher.run(Request("r", PROMPT, 4), caller=caller)
        dispatcher.close()
    assert planner.given_up == ["r"]


def test_one_whose_caller_hears_nothing_from_it_and_leaves_is_given_up() -> None:
    caller = Caller()

    class Mute(Double):
        def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[Any]:
            over = threading.Event()
            if context.add_callback(over.set):
                caller.leave()
                over.wait()
            yield from ()

    mute = Mute()
    with serving(mute):
        planner = Planner(mute.address, mute.address)
        dispatcher = Dispatcher(planner, One(SPEC), (), OPEN)
        with pytest.raises(CallerLeft):
            dispatcher.run(Request("r", PROMPT, 4), caller=caller)
        dispatcher.close()
    assert planner.given_up == ["r"]


def test_one_that_an_engine_refuses_or_that_finds_no_room_in_time_is_given_up() -> None:
    refusing, other = Double(refuses=True), Double()
    with serving(refusing, other):
        planner = Planner(refusing.address, other.address)
        with pytest.raises(Overloaded):
            run(planner)
        late = Planner(other.address, other.address + "0", late=True)
        with pytest.raises(TooLate):
            run(late)
    assert planner.given_up == late.given_up == ["r"]


def test_one_that_goes_on_without_its_engine_is_given_up_under_the_id_that_it_had() -> None:
    other = Double()
    with serving(other):
        planner = Planner("127.0.0.1:1", "127.0.0.1:1")
        tokens, outcome = run(planner, other.address)
    assert tokens == TOKENS and outcome.tries == 2
    assert planner.given_up == ["r", "r try 2"], "and so is a plan for an engine that is gone"


def test_one_that_runs_is_not_given_up_and_one_that_ran_is_its_engines_to_tell_of() -> None:
    dying, other = Double(dies_after=2), Double()
    with serving(dying, other):
        planner = Planner(dying.address, other.address)
        run(planner)
        assert not planner.given_up
        ran = Planner(dying.address, dying.address)
        run(ran, other.address)
    assert ran.given_up == ["r try 2"], "of which the plan was for an engine that is gone"


def test_what_came_of_one_whose_caller_leaves_can_be_told() -> None:
    double, caller, outcome = Endless(), Caller(), Outcome()

    def told(token: int, logprobs: Logprobs | None) -> None:
        caller.leave()
        caller.check()

    with serving(double):
        dispatcher = Dispatcher(Nobody(), One(SPEC), [double.address], OPEN)
        with pytest.raises(CallerLeft):
            dispatcher.run(Request("r", PROMPT, 4), told, caller, outcome)
        dispatcher.close()
    assert outcome.tokens == TOKENS[:1] and outcome.engines == [double.address]
    assert 0 < outcome.ttft_seconds <= outcome.seconds
