"""A dispatcher over engines that do as they are told: what it sends where, and what it does when
one goes away, refuses or is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.errors import Invalid, Overloaded, TooLate, Unavailable
from kvstore.gateway import engines
from kvstore.gateway.caller import Caller, CallerLeft
from kvstore.gateway.dispatch import LINE_MS, Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import One, Space
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
from tests.nodes import CALL_SECONDS, SPEC

SILENCE_SECONDS = 5.0  # that a test waits for


def test_a_prompt_is_prefilled_at_one_engine_and_followed_at_another() -> None:
    first, second = Double(), Double()
    with serving(first, second):
        planner = Planner(first.address, second.address)
        tokens, outcome = run(planner)
    assert tokens == TOKENS and outcome.engines == [first.address, second.address]
    (prefill,), (generate,) = first.prefills, second.generates
    assert prefill.turn == pb.Turn(priority_ms=30, aging=0.03, drop_after_ms=9_000)
    assert list(generate.hand_off.handles) == [b"h"] and not generate.HasField("turn")
    phases = [one.phase for one in planner.asked]
    assert phases == [conductor_pb2.PREFILL, conductor_pb2.DECODE]
    assert {one.request_id for one in planner.asked} == {"r"}


@pytest.mark.parametrize(
    ("loaded", "found"),
    [(99, (64, 35, "absent")), (70, (64, 6, "absent")), (32, (32, 0, "damaged"))],
)
def test_what_was_found_and_why_no_more_is_as_the_prefill_says_unless_the_decode_had_less(
    loaded: int, found: tuple[int, int, str]
) -> None:
    first, second = Double(reused=64), Double(loaded=loaded)
    with serving(first, second):
        _, out = run(Planner(first.address, second.address))
    assert (out.pool_tokens, out.hand_off_tokens, out.miss) == found


@pytest.mark.parametrize("computed", [100, 4])
def test_one_that_does_both_or_has_nearly_all_does_it_alone(computed: int) -> None:
    first, second = Double(), Double()
    with serving(first, second):
        prefill = second.address if computed == 100 else first.address
        tokens, _ = run(Planner(prefill, second.address, computed))
    assert tokens == TOKENS and not first.prefills and not second.prefills
    assert second.generates[0].turn.drop_after_ms == 9_000


@pytest.mark.parametrize(
    ("split", "prefills"),
    [({"coming": 10}, 1), ({"own": 10}, 1), ({"own": 6, "coming": 4, "shared": 9}, 0)],
)
def test_one_whose_prefix_one_engine_has_or_computes_goes_there_unless_others_have_it_too(
    split: dict[str, int], prefills: int
) -> None:
    prefill, decode = Double(), Double()
    with serving(prefill, decode):
        run(Planner(prefill.address, decode.address, computed=30, **split))
    assert len(prefill.prefills) == prefills and len(decode.generates) == 1


@pytest.mark.parametrize(
    ("blocks", "split"),
    [((64, 16), {"computed": 68, "there": 2}), ((16, 64), {"computed": 36, "coming": 1})],
)
def test_a_plans_blocks_are_as_large_as_those_of_the_engines_that_it_is_for(
    blocks: tuple[int, int], split: dict[str, int]
) -> None:
    class Second:
        """Is the best of two spaces."""

        revision = SPEC.revision

        def now(self) -> list[Space]:
            return [Space(bytes([size]) * 32, 0, size) for size in blocks]

        def first(self, asks: Sequence[conductor_pb2.ScheduleRequest]) -> int:
            return 1

        def left(self) -> frozenset[str]:
            return frozenset()

    prefill, decode = Double(), Double()
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address, **split)
        dispatcher = Dispatcher(planner, Second(), (), OPEN)
        dispatcher.run(Request("r", PROMPT, 2))
        dispatcher.close()
    assert len(prefill.prefills) == len(decode.generates) == 1, "it was not worth a hand-off"


def test_one_that_is_computed_again_where_it_is_decoded_is_not_prefilled_for_nothing() -> None:
    prefill, decode = Double(), Double()
    with serving(prefill, decode):
        run(Planner(prefill.address, decode.address, computed=len(PROMPT), there=25))
    assert not prefill.prefills and len(decode.generates) == 1


def test_with_no_conductor_known_engines_do_it_in_turn() -> None:
    first, second = Double(), Double()
    with serving(first, second):
        dispatcher = Dispatcher(Nobody(), One(SPEC), [first.address, second.address], OPEN)
        for number in range(4):
            dispatcher.run(Request(f"{number}", PROMPT, 2))
        dispatcher.close()
    assert len(first.generates) == len(second.generates) == 2


def test_with_no_conductor_what_one_engine_has_no_place_for_goes_to_a_larger_one() -> None:
    small, large = Double(room=len(PROMPT)), Double()
    with serving(small, large):
        tokens, outcome = run(Nobody(), small.address, large.address)
        assert tokens == TOKENS and outcome.engines == [small.address, large.address]
        large.room = 1
        with pytest.raises(Invalid, match="that fit"):
            run(Nobody(), small.address, large.address)
    assert len(small.generates) == len(large.generates) == 2, "each once"


def test_what_an_engine_or_a_conductor_refuses_is_refused() -> None:
    refusing, other = Double(refuses=True), Double()
    with serving(refusing, other), pytest.raises(Overloaded, match="not begun"):
        run(Planner(refusing.address, other.address), other.address)
    assert not other.generates


def test_a_prompt_whose_prefill_runs_waits_for_room_to_decode() -> None:
    first, second = Double(), Double()
    with serving(first, second):
        planner = Planner(first.address, second.address, full=3)
        tokens, _ = run(planner)
    assert tokens == TOKENS and len(planner.asked) == 5


def test_a_caller_that_leaves_while_all_are_full_is_waited_for_no_longer() -> None:
    caller, first, second = Caller(), Double(lasts=True), Double()

    class Full(Planner):
        def schedule(self, request: conductor_pb2.ScheduleRequest) -> Any:
            if request.phase != conductor_pb2.DECODE:
                return super().schedule(request)
            caller.leave()
            raise Overloaded("come again later", int(1e3 * CALL_SECONDS))

    with serving(first, second):
        dispatcher = Dispatcher(Full(first.address, second.address), One(SPEC), (), OPEN)
        began = time.monotonic()
        with pytest.raises(CallerLeft):
            dispatcher.run(Request("r", PROMPT, 1), caller=caller)
        dispatcher.close()
        assert time.monotonic() - began < CALL_SECONDS / 2
        assert first.stopped.wait(CALL_SECONDS)


def test_one_that_room_comes_too_late_for_is_refused_and_its_prefill_stopped() -> None:
    first, second = Double(lasts=True), Double()
    with serving(first, second):
        planner = Planner(first.address, second.address, full=2, late=True)
        with pytest.raises(TooLate):
            run(planner)
        assert first.stopped.wait(CALL_SECONDS)
    assert len(planner.asked) == 4 and not second.generates
    assert [one.wait_ms for one in planner.asked] == [0, LINE_MS, LINE_MS, LINE_MS]


@pytest.mark.parametrize("came", [0, 1, 3])
def test_a_token_that_another_engine_makes_again_has_its_logprobs_once(came: int) -> None:
    dies, lives = Double(dies_after=came), Double()
    with serving(dies, lives):
        tokens, outcome = run(Nobody(), dies.address, lives.address, logprobs=2)
    assert tokens == TOKENS and outcome.tries == 2
    assert [one.generates[0].logprobs for one in (dies, lives)] == [2, 2]


class Wrong(Double):
    """Says its first token with these logprobs."""

    def __init__(self, logprobs: pb.Logprobs | None) -> None:
        super().__init__()
        self.logprobs = logprobs

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        yield pb.GenerateReply(token=TOKENS[0], logprobs=self.logprobs)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        pb.Logprobs(logprob=-1, top_tokens=[1, 2, 3], top_logprobs=[-1, -2, -3]),
        pb.Logprobs(logprob=-1, top_tokens=[1, 2], top_logprobs=[-1]),
        pb.Logprobs(logprob=float("-inf")),
        pb.Logprobs(logprob=-1, top_tokens=[1], top_logprobs=[float("nan")]),
    ],
)
def test_logprobs_that_are_not_what_was_asked_for_are_had_at_another_engine(
    logprobs: pb.Logprobs | None,
) -> None:
    wrong, right = Wrong(logprobs), Double()
    with serving(wrong, right):
        tokens, outcome = run(Nobody(), wrong.address, right.address, logprobs=2)
    assert tokens == TOKENS and outcome.engines == [wrong.address, right.address]


def test_a_request_without_the_pool_is_not_planned() -> None:
    only = Double()
    with serving(only):
        planner = Planner(only.address, only.address)
        tokens, _ = run(planner, only.address, without_pool=True)
    assert tokens == TOKENS and not planner.asked and only.generates[0].without_pool


def test_whoever_is_told_may_end_it_and_its_engine_is_hung_up_on() -> None:
    endless, other = Endless(), Double()

    def told(token: int, logprobs: Logprobs | None) -> None:
        raise ArithmeticError

    with serving(endless, other):
        dispatcher = Dispatcher(Nobody(), One(SPEC), [endless.address, other.address], OPEN)
        with pytest.raises(ArithmeticError) as raised:
            dispatcher.run(Request("r", PROMPT, 4), told)
        # `raised` keeps the call's frames, so it is not by their end that it ends.
        assert endless.stopped.wait(CALL_SECONDS / 2) and raised.value
        dispatcher.close()
    assert not other.generates


class Slow(Double):
    """Takes longer for its answer than anybody waits for a part of it."""

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        for reply in super().Generate(request, context):
            time.sleep(SILENCE_SECONDS / 3)
            yield reply


def test_an_answer_may_take_as_long_as_it_will_while_its_tokens_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr(engines, "DEADLINE_SECONDS", SILENCE_SECONDS)
    slow = Slow()
    with serving(slow):
        tokens, outcome = run(Nobody(), slow.address)
    assert tokens == TOKENS and outcome.tries == 1


def test_an_engine_of_which_nothing_is_heard_any_more_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)
    endless, other = Endless(), Double()
    with serving(endless, other):
        tokens, outcome = run(Nobody(), endless.address, other.address)
        assert endless.stopped.wait(CALL_SECONDS / 2)
    assert tokens == TOKENS and outcome.engines == [endless.address, other.address]
    with serving(alone := Endless()), pytest.raises(Unavailable, match="nothing was heard of it"):
        run(Nobody(), alone.address)


def test_a_prefill_stops_whose_decode_went_away() -> None:
    first, second, third = Double(lasts=True), Double(dies_after=0), Double()
    with serving(first, second, third):
        tokens, _ = run(Planner(first.address, second.address), third.address)
        assert first.stopped.wait(CALL_SECONDS / 2)
    assert tokens == TOKENS and len(first.prefills) == 1 and third.generates


class Stuck(Double):
    """Begins whatever it is asked, and says nothing until its caller hangs up. `asked` is set
    then."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def Prefill(self, request: pb.PrefillRequest, context: Any) -> Iterator[pb.PrefillReply]:
        yield from self._wait(context)

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        yield from self._wait(context)

    def _wait(self, context: Any) -> Iterator[Any]:
        self.tell_end(context)
        self.asked.set()
        self.stopped.wait(CALL_SECONDS)
        yield from ()


def left(planner: Any, begun: threading.Event, *engines: str) -> None:
    """A caller that leaves once something has begun."""
    dispatcher, caller = Dispatcher(planner, One(SPEC), engines, OPEN), Caller()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(dispatcher.run, Request("r", PROMPT, 4), caller=caller)
        assert begun.wait(CALL_SECONDS)
        caller.leave()
        with pytest.raises(CallerLeft):
            running.result(CALL_SECONDS / 2)
    dispatcher.close()


@pytest.mark.parametrize("computed", [100, 10])
def test_a_caller_that_leaves_before_the_first_token_ends_its_prefill_and_its_decode(
    computed: int,
) -> None:
    stuck, other = Stuck(), Double()
    with serving(stuck, other):
        first, second = stuck.address, other.address
        places = (first, second) if computed == 100 else (second, first)
        left(Planner(*places, computed=computed), stuck.asked, second)
        assert stuck.stopped.wait(CALL_SECONDS / 2)
    assert not other.generates and not other.prefills, "and nobody tries again"


def test_a_caller_that_leaves_waits_for_room_no_more() -> None:
    first, second, begun = Double(lasts=True), Double(), threading.Event()

    class Full(Planner):
        def schedule(
            self, request: conductor_pb2.ScheduleRequest
        ) -> conductor_pb2.ScheduleReply | None:
            if request.phase == conductor_pb2.DECODE:
                begun.set()
            return super().schedule(request)

    with serving(first, second):
        left(Full(first.address, second.address, full=1 << 30), begun)
        assert first.stopped.wait(CALL_SECONDS / 2)
    assert not second.generates


def test_one_that_left_before_it_began_is_sent_nowhere_for_long() -> None:
    stuck, caller = Stuck(), Caller()
    caller.leave()
    with serving(stuck):
        dispatcher = Dispatcher(Nobody(), One(SPEC), [stuck.address], OPEN)
        with pytest.raises(CallerLeft):
            dispatcher.run(Request("r", PROMPT, 4), caller=caller)
        dispatcher.close()


def test_a_caller_that_has_enough_is_given_what_came_and_its_engine_is_hung_up_on() -> None:
    endless, other, caller = Endless(), Double(), Caller()

    def told(token: int, logprobs: Logprobs | None) -> None:
        caller.enough()

    with serving(endless, other):
        dispatcher = Dispatcher(Nobody(), One(SPEC), [endless.address, other.address], OPEN)
        outcome = dispatcher.run(Request("r", PROMPT, 4), told, caller)
        assert endless.stopped.wait(CALL_SECONDS / 2)
        dispatcher.close()
    assert outcome.tokens == TOKENS[:1] and not other.generates


@pytest.mark.parametrize("whose", ["prefill", "silence"])
def test_where_no_thread_is_left_for_a_call_another_engine_is_asked(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def once(thread: threading.Thread) -> None:
        if thread.name.startswith(whose) and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    first, second, other = Double(), Double(), Double()
    with serving(first, second, other):
        monkeypatch.setattr(threading.Thread, "start", once)
        tokens, outcome = run(Planner(first.address, second.address), other.address)
    assert refused and tokens == TOKENS and outcome.tries == 2
