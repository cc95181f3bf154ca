"""A dispatcher over servers of OpenAI's API that do as they are told: what they are asked, what is
made of their answers, and what becomes of a request whose answer breaks off."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.errors import Denied, Invalid, Overloaded, Unavailable
from kvstore.gateway import engines, events
from kvstore.gateway.caller import Caller, CallerLeft
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.events import check_health
from kvstore.gateway.needs import Unable
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.sampling import Sampling
from kvstore.gateway.spaces import One, Space
from kvstore.logprobs import Logprobs
from kvstore.wire.v1 import conductor_pb2
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import BREAK, DONE, DRIP, WAIT, Double, serving, told, used
from tests.nodes import CALL_SECONDS, SPEC
from tests.rpc.drops import saying

PROMPT = tuple(range(100))
TOKENS = [7, 8, 9, 10]
WHOLE = (told(TOKENS[:1]), told(TOKENS[1:3]), told(TOKENS[3:], "length"), used(64), DONE)
SILENCE_SECONDS = 5.0  # that a test waits for
NOBODY_THERE = "http://127.0.0.1:9"


class Servers(One):
    """Of engines that all speak OpenAI's API."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self._all = (replace(Space.of(SPEC), samples=True),)


class Names:
    """An engine, and of those at its address one."""

    def __init__(self, address: str, decode: str = "", rank: int | None = None) -> None:
        self.reply = conductor_pb2.ScheduleReply()
        self.reply.prefill.address, self.reply.decode.address = address, decode or address
        if rank is not None:
            self.reply.prefill.data_parallel_rank = rank
        self.reply.split.computed_tokens = 100
        self.phases: list[int] = []
        self.not_at: list[list[str]] = []

    def give_up(self, request: conductor_pb2.ScheduleRequest) -> None:
        """It is named to nobody else."""

    def schedule(
        self, request: conductor_pb2.ScheduleRequest
    ) -> conductor_pb2.ScheduleReply | None:
        self.phases.append(request.phase)
        self.not_at.append([*request.not_at])
        return self.reply


def run(planner: Any, *engines: str, **options: Any) -> tuple[list[int], Outcome]:
    """`options` are the request's; `said` are the logprobs that have come."""
    came: list[int] = []
    said = options.pop("said", [])

    def told(token: int, logprobs: Logprobs | None) -> None:
        came.append(token)
        said.append(logprobs)

    draws = isinstance(planner, Nobody)  # then it is for those that are known to say
    spaces = Servers() if draws else One(SPEC)
    dispatcher = Dispatcher(planner, spaces, engines, OPEN)
    try:
        outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS), **options), told)
    finally:
        dispatcher.close()
    return came, outcome


def test_a_server_is_asked_by_token_ids_and_its_own_are_the_answer() -> None:
    server = Double(WHOLE)
    with serving(server):
        tokens, outcome = run(Nobody(), server.address, salt="s", ignore_eos=True)
    assert tokens == TOKENS and outcome.tokens == TOKENS and outcome.reason == "length"
    assert (outcome.pool_tokens, outcome.computed_tokens) == (64, 36)
    (asked,) = server.asked
    assert asked.path == "/v1/completions" and events.CONNECT_SECONDS < CALL_SECONDS
    assert asked.body["prompt"] == list(PROMPT) and asked.body["max_tokens"] == len(TOKENS)
    assert asked.body["stream"] and asked.body["return_token_ids"] and asked.body["ignore_eos"]
    assert asked.body["temperature"] == 0 and asked.body["cache_salt"] == "s"
    assert asked.body["kv_transfer_params"] == {"moonpool": {"request": "r"}}


@pytest.mark.parametrize("sampling", [None, Sampling(0.7)])
def test_nothing_of_an_answer_is_left_to_the_generation_config_of_a_server(
    sampling: Sampling | None,
) -> None:
    server = Double(WHOLE)
    with serving(server):
        run(Nobody(), server.address, sampling=sampling)
    said = server.asked[0].body
    assert (said["repetition_penalty"], said["top_k"], said["min_p"]) == (1.0, -1, 0.0)
    assert "temperature" in said and ("top_p" in said) == (sampling is not None)


def test_a_plan_s_server_gets_the_whole_request_and_the_engine_that_is_meant_there() -> None:
    server = Double(WHOLE)
    with serving(server):
        planner = Names(server.address, rank=3)
        tokens, outcome = run(planner)
    assert tokens == TOKENS and outcome.engines == [server.address]
    assert server.asked[0].headers["X-data-parallel-rank"] == "3"
    assert planner.phases == [conductor_pb2.PREFILL]


DRAWN = Sampling(0.7, seed=3)


def test_tokens_that_are_drawn_are_drawn_as_it_is_wanted() -> None:
    server = Double(WHOLE)
    with serving(server):
        run(Nobody(), server.address, sampling=DRAWN)
    said = server.asked[0].body
    assert (said["temperature"], said["seed"], said["top_p"]) == (0.7, 3, 1.0)


def test_no_token_that_was_drawn_is_drawn_again_where_an_answer_broke_off() -> None:
    bad, good = Double((told(TOKENS[:2]), BREAK)), Double((told(TOKENS[2:], "stop"), DONE))
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address, sampling=DRAWN)
    assert tokens == TOKENS and outcome.tries == 2
    assert good.asked[0].body["prompt"] == [*PROMPT, *TOKENS[:2]]
    assert good.asked[0].body["max_tokens"] == 2


def test_engines_that_draw_no_tokens_are_not_asked_to() -> None:
    server = Double(WHOLE)
    with serving(server):
        tokens, outcome = run(Nobody(), "127.0.0.1:9", server.address, sampling=DRAWN)
        assert tokens == TOKENS and outcome.engines == [server.address]
        with pytest.raises(Unable, match="temperature"):
            run(Nobody(), "127.0.0.1:9", sampling=DRAWN, without_pool=True)
        with pytest.raises(Unable, match="temperature"):
            run(Names("127.0.0.1:9"), sampling=DRAWN)


def test_what_is_loaded_of_an_answer_that_is_gone_on_with_is_nothing_of_the_prompt() -> None:
    bad = Double((told(TOKENS[:3]), used(64), BREAK))
    good = Double((told(TOKENS[2:], "length"), used(len(PROMPT) + 2), DONE))
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address)
    assert tokens == TOKENS and outcome.tries == 2
    assert (outcome.pool_tokens, outcome.computed_tokens) == (len(PROMPT), 0)


BROKEN = {
    "its connection ends": (told(TOKENS[:2]), BREAK),
    "its connection ends within an event": (told(TOKENS[:2]), b'data: {"cho', BREAK),
    "it ends in order, and says not why": (told(TOKENS[:2]), DONE),
    "it ends in order, with no last word": (told(TOKENS[:2]),),
    "an event is no JSON": (told(TOKENS[:2]), "{"),
    "an event is no object": (told(TOKENS[:2]), "[]"),
    "an event is of another kind": (told(TOKENS[:2]), {"object": "?"}),
    "an event has two choices": (told(TOKENS[:2]), {"choices": [{}, {}]}),
    "a token is no number": (told(TOKENS[:2]), {"choices": [{"token_ids": ["9"]}]}),
    "a token is out of bounds": (told(TOKENS[:2]), told([-1])),
    "it has no ids of tokens": (told(TOKENS[:2]), {"choices": [{"text": "w9"}]}),
    "it says more than it was asked for": (told(TOKENS[:2]), told([9, 9, 9])),
    "it was aborted there": (told(TOKENS[:2]), told([], "abort"), used(0), DONE),
    "it failed": (told(TOKENS[:2]), {"error": {"message": "oh", "code": 500}}, DONE),
    "it fails in no known way": (told(TOKENS[:2]), {"error": 3}, DONE),
}


@pytest.mark.parametrize("why", BROKEN)
def test_an_answer_that_breaks_off_is_gone_on_with_at_another_server(why: str) -> None:
    bad, good = Double(BROKEN[why]), Double((told(TOKENS[1:], "length"), DONE))
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address)
    assert tokens == TOKENS and outcome.engines == [bad.address, good.address]
    # The last token that came is made again, for it may have been the end.
    assert good.asked[0].body["prompt"] == [*PROMPT, *TOKENS[:1]]
    assert good.asked[0].body["max_tokens"] == 3


@pytest.mark.parametrize("why", BROKEN)
def test_an_answer_that_nobody_can_go_on_with_is_an_error(why: str) -> None:
    bad = Double(BROKEN[why])
    with serving(bad), pytest.raises(Unavailable):
        run(Nobody(), bad.address)


def of(those: list[int], top: int, **wrong: Any) -> dict[str, Any]:
    """Logprobs as vLLM writes them: the token itself, which is not among the likeliest, first."""
    likeliest = {f"token_id:{one}": -one / 4 for one in range(1, 1 + top)}
    each = {
        "tokens": [f"token_id:{one}" for one in those],
        "token_logprobs": [-float(one) for one in those],
        "top_logprobs": [{f"token_id:{one}": -float(one), **likeliest} for one in those],
    }
    return {**each, **wrong}


def told_of(tokens: list[int], logprobs: Any, reason: str | None = None) -> dict[str, Any]:
    event = told(tokens, reason)
    event["choices"][0]["logprobs"] = logprobs
    return event


def test_logprobs_are_asked_for_by_token_ids_and_each_token_has_its_own() -> None:
    parts = [told_of(TOKENS[:1], of(TOKENS[:1], 2)), told_of(TOKENS[1:], of(TOKENS[1:], 2))]
    server, said = Double((*parts, told([], "length"), DONE)), list[Any]()
    with serving(server):
        tokens, _ = run(Nobody(), server.address, logprobs=2, said=said)
    top = ((1, -0.25), (2, -0.5))
    assert tokens == TOKENS and said == [Logprobs(-float(one), top) for one in TOKENS]
    body = server.asked[0].body
    assert body["logprobs"] == 2 and body["return_tokens_as_token_ids"]
    with serving(server):
        run(Nobody(), server.address)
    assert not {"logprobs", "return_tokens_as_token_ids"} & server.asked[1].body.keys()


def test_a_token_that_is_made_again_elsewhere_has_its_logprobs_once() -> None:
    bad = Double((told_of(TOKENS[:2], of(TOKENS[:2], 1)), BREAK))
    good, said = Double((told_of(TOKENS[1:], of(TOKENS[1:], 1), "length"), DONE)), list[Any]()
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address, logprobs=1, said=said)
    assert tokens == TOKENS and outcome.tries == 2
    assert [one.logprob for one in said] == [-float(one) for one in TOKENS]


ID = "token_id:7"
UNSAID = {
    "none": None,
    "no object": [1],
    "fewer than tokens": of([7], 1),
    "of another token": of([7, 9], 1),
    "texts for ids": of([7, 8], 1, tokens=["w7", "w8"]),
    "no numbers": of([7, 8], 1, token_logprobs=["-1", "-2"]),
    "true": of([7, 8], 1, token_logprobs=[True, True]),
    "infinite": of([7, 8], 1, token_logprobs=[-1.0, float("-inf")]),
    "no number at all": of([7, 8], 1, token_logprobs=[-1.0, float("nan")]),
    "more digits than a number has": of([7, 8], 1, token_logprobs=[-1.0, -(10**400)]),
    "more of the likeliest than were asked for": of([7, 8], 3),
    "a list of the likeliest": of([7, 8], 1, top_logprobs=[[], []]),
    "no likeliest": of([7, 8], 1, top_logprobs=[None, None]),
    "the likeliest by text": of([7, 8], 1, top_logprobs=[{"w7": -1.0}, {ID: -1.0}]),
    "the likeliest by no number": of([7, 8], 1, top_logprobs=[{f"{ID}x": -1.0}, {ID: -1.0}]),
    "ids that no token has": of([7, 8], 1, top_logprobs=[{f"{ID}{'0' * 10}": -1.0}] * 2),
}


@pytest.mark.parametrize("why", UNSAID)
def test_logprobs_that_are_not_what_was_asked_for_are_had_elsewhere(why: str) -> None:
    bad = Double((told_of(TOKENS[:2], UNSAID[why]), told(TOKENS[2:], "length"), DONE))
    good, said = Double((told_of(TOKENS, of(TOKENS, 1), "length"), DONE)), list[Any]()
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address, logprobs=1, said=said)
    assert tokens == TOKENS and outcome.tries == 2
    assert [one.logprob for one in said] == [-float(one) for one in TOKENS]


def test_an_answer_whose_last_token_came_is_whole_whatever_becomes_of_the_rest() -> None:
    server = Double((told(TOKENS, "stop"), BREAK))
    with serving(server):
        tokens, outcome = run(Nobody(), server.address)
    assert tokens == TOKENS and outcome.reason == "stop" and outcome.tries == 1


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_server_that_cannot_is_passed_over_for_one_that_can(status: int) -> None:
    bad, good = Double(({"error": {"message": "asleep"}},), status), Double(WHOLE)
    with serving(bad, good):
        tokens, outcome = run(Nobody(), NOBODY_THERE, bad.address, good.address)
        with pytest.raises(Unavailable, match="asleep"):
            run(Nobody(), bad.address)
    assert tokens == TOKENS and outcome.tries == 3


BECAUSE = ({"error": {"message": "because " + "x" * 9_000}},)


@pytest.mark.parametrize(("status", "kind"), [(429, Overloaded), (401, Denied)])
def test_what_all_would_refuse_is_refused_in_the_first_server_s_words(
    status: int, kind: type[Exception]
) -> None:
    bad, good = Double(BECAUSE, status), Double(WHOLE)
    bad.headers = {"Content-Type": "application/json", "Retry-After": "7"}
    with serving(bad, good), pytest.raises(kind, match="because x") as error:
        run(Nobody(), bad.address, good.address)
    assert not good.asked and len(str(error.value)) < 1_000
    if isinstance(error.value, Overloaded):
        assert error.value.retry_after_ms == 7_000


@pytest.mark.parametrize("status", [400, 422])
def test_what_may_only_be_too_large_for_one_server_is_had_elsewhere(status: int) -> None:
    bad, good = Double(BECAUSE, status), Double(WHOLE)
    with serving(bad, good):
        assert run(Nobody(), bad.address, good.address)[0] == TOKENS
        with pytest.raises(Invalid, match="because x"):
            run(Nobody(), bad.address)


def test_what_is_no_stream_is_no_answer() -> None:
    page = Double((b"<html>",), headers={"Content-Type": "text/html"})
    with serving(page), pytest.raises(Unavailable, match="text/html"):
        run(Nobody(), page.address)


def test_an_event_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SERVE_EVENT_BYTES_MAX", 1_000)
    endless = Double((b"data: " + b"x" * 5_000, WAIT))
    with serving(endless), pytest.raises(Unavailable, match="more than 1000 bytes"):
        run(Nobody(), endless.address)


def test_an_answer_may_take_as_long_as_it_will_while_its_tokens_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr(engines, "DEADLINE_SECONDS", SILENCE_SECONDS)
    slow = Double(WHOLE, pause_seconds=SILENCE_SECONDS / 3)
    with serving(slow):
        tokens, outcome = run(Nobody(), slow.address)
    assert tokens == TOKENS and outcome.tries == 1


@pytest.mark.parametrize("rest", [WAIT, DRIP])
def test_a_server_of_which_no_event_is_heard_any_more_is_hung_up_on(
    rest: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)
    silent, other = Double((told(TOKENS[:1]), rest)), Double(WHOLE[1:])
    with serving(silent, other):
        tokens, outcome = run(Nobody(), silent.address, other.address, sampling=DRAWN)
        assert silent.left.wait(CALL_SECONDS)
    assert tokens == TOKENS and outcome.engines == [silent.address, other.address]


def test_the_words_of_a_refusal_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)
    server = Double((DRIP,), 503)
    with serving(server):
        with pytest.raises(Unavailable):
            run(Nobody(), server.address)
        assert server.left.wait(CALL_SECONDS)


@pytest.mark.parametrize("came", [(), (told(TOKENS[:2]),)])
def test_a_caller_that_leaves_hangs_up_on_the_server(came: tuple[Any, ...]) -> None:
    server, caller = Double((*came, WAIT)), Caller()
    dispatcher = Dispatcher(Nobody(), One(SPEC), [], OPEN)
    with serving(server), ThreadPoolExecutor(1) as thread:
        dispatcher._known.learn(server.address)
        running = thread.submit(dispatcher.run, Request("r", PROMPT, 4), caller=caller)
        assert server.begun.wait(CALL_SECONDS)
        caller.leave()
        with pytest.raises(CallerLeft):
            running.result(CALL_SECONDS)
        assert server.left.wait(CALL_SECONDS)
    assert len(server.asked) == 1


def test_a_caller_that_has_enough_has_what_came_and_hangs_up() -> None:
    server, caller = Double((told(TOKENS[:2]), WAIT)), Caller()
    dispatcher, enough = Dispatcher(Nobody(), One(SPEC), [], OPEN), threading.Event()
    with serving(server):
        dispatcher._known.learn(server.address)

        def heard(token: int, logprobs: Logprobs | None) -> None:
            if token == TOKENS[1]:
                caller.enough()
                enough.set()

        outcome = dispatcher.run(Request("r", PROMPT, 4), heard, caller)
        assert server.left.wait(CALL_SECONDS)
    assert outcome.tokens == TOKENS[:2] and enough.is_set()


def test_a_server_is_well_if_it_says_so() -> None:
    good, bad = Double(), Double(status=503)
    with serving(good, bad):
        check_health(good.address, CALL_SECONDS)
        with pytest.raises(Unavailable, match="503"):
            check_health(bad.address, CALL_SECONDS)
    with pytest.raises(Unavailable):
        check_health(NOBODY_THERE, CALL_SECONDS)
    with saying(b"HTTP/1.0 200 OK\r\nX: ", b"x", 40) as calling, pytest.raises(Unavailable):
        check_health(f"http://{calling.host}:{calling.port}", 0.3)
