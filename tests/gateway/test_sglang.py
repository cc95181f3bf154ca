"""A dispatcher over servers that speak SGLang's API as they are told to: what they are asked, and
what is made of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.errors import Invalid, Unavailable
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.sampling import Sampling
from kvstore.logprobs import Logprobs
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import BREAK, DONE, Double, serving
from tests.gateway.test_vllm import Names, Servers

PROMPT = tuple(range(100))
TOKENS = [7, 8, 9, 10]


def event(
    ids: Sequence[int], total: int, reason: Any = None, cached: int = 0, **meta: Any
) -> dict[str, Any]:
    """As SGLang makes them, with all tokens so far or with those that are new."""
    said = {"completion_tokens": total, "finish_reason": reason, "cached_tokens": cached, **meta}
    return {"text": None, "output_ids": list(ids), "meta_info": said}


LENGTH, STOP = {"type": "length", "length": 4}, {"type": "stop", "matched": 2}
ALL_ANEW = (event([7], 1), event([7, 8, 9], 3), event(TOKENS, 4, LENGTH, 64), DONE)
ONLY_NEW = (event([7], 1), event([8, 9], 3), event([10], 4, LENGTH, 64), DONE)


def address_of(double: Double) -> str:
    return double.address.replace("http://", "sglang://")


def run(*doubles: Double, planner: Any = None, **asked: Any) -> tuple[Outcome, list[Any]]:
    """At the first of them, or where that does not do at the next; and what was told."""
    told: list[tuple[int, Logprobs | None]] = []
    dispatcher = Dispatcher(
        planner or Nobody(), Servers(), [address_of(one) for one in doubles], OPEN
    )
    request = Request("r", PROMPT, asked.pop("new", 4), **asked)
    try:
        return dispatcher.run(request, lambda *one: told.append(one)), told
    finally:
        dispatcher.close()


@pytest.mark.parametrize("events", [ALL_ANEW, ONLY_NEW], ids=["all anew", "only new"])
def test_a_server_is_asked_by_token_ids_and_each_token_of_its_answer_is_told_once(
    events: Sequence[Any],
) -> None:
    server = Double(events)
    with serving(server):
        outcome, told = run(server, ignore_eos=True, salt="mine")
    assert outcome.tokens == TOKENS == [token for token, _ in told]
    assert outcome.reason == "length" and outcome.engines == [address_of(server)]
    assert (outcome.pool_tokens, outcome.computed_tokens) == (64, 36)
    (asked,) = server.asked
    assert asked.path == "/generate"
    assert asked.body == {
        "rid": "r;1",
        "input_ids": list(PROMPT),
        "stream": True,
        "cache_salt": "mine",
        "sampling_params": {
            "temperature": 0.0,
            "max_new_tokens": 4,
            "ignore_eos": True,
            "repetition_penalty": 1.0,
            "top_k": -1,
            "top_p": 1.0,
            "min_p": 0.0,
        },
    }


def test_a_plan_s_server_gets_the_whole_request() -> None:
    server = Double(ONLY_NEW)
    with serving(server):
        outcome, _ = run(planner=Names(address_of(server)))
    assert outcome.tokens == TOKENS and len(server.asked) == 1


def test_tokens_that_are_drawn_are_drawn_as_it_is_wanted() -> None:
    server = Double(ONLY_NEW)
    with serving(server):
        run(server, sampling=Sampling(0.7, top_p=0.9, seed=5, presence_penalty=0.1))
    drawn = server.asked[0].body["sampling_params"]
    wanted = {"temperature": 0.7, "top_p": 0.9, "sampling_seed": 5, "presence_penalty": 0.1}
    assert wanted.items() <= drawn.items() and drawn["frequency_penalty"] == 0.0


@pytest.mark.parametrize("anew", [True, False])
def test_logprobs_are_each_token_s_own_and_those_of_the_likeliest(anew: bool) -> None:
    rows = [[-0.5, one, None] for one in TOKENS]
    tops = [[[-0.5, one, None], [-1.5, one + 1, None]] for one in TOKENS]
    events = []
    for first, last in ((0, 1), (1, 3), (3, 4)):
        shown = slice(0 if anew else first, last)
        said = {"output_token_logprobs": rows[shown], "output_top_logprobs": tops[shown]}
        events.append(event(TOKENS[shown], last, LENGTH if last == 4 else None, **said))
    server = Double([*events, DONE])
    with serving(server):
        _, told = run(server, logprobs=2)
    assert told == [(one, Logprobs(-0.5, ((one, -0.5), (one + 1, -1.5)))) for one in TOKENS]
    body = server.asked[0].body
    assert body["return_logprob"] is True and body["top_logprobs_num"] == 2


BAD = {
    "no ids": [{"meta_info": {"completion_tokens": 1}}],
    "no meta": [{"output_ids": [7]}],
    "ids that are none": [event([-1], 1)],
    "more than was asked for": [event([1, 2, 3, 4, 5], 5)],
    "an abort": [event([7], 1, {"type": "abort", "message": "KV cache is full"})],
    "a server's failure": [{"error": {"message": "broken", "code": 500}}],
    "it breaks off": [event([7], 1), BREAK],
    "it does not say why it ends": [event([7], 1), DONE],
}


@pytest.mark.parametrize("why", BAD)
def test_an_answer_that_is_none_is_gone_on_with_at_another_server(why: str) -> None:
    """There the last token that came is made again: it may have been the end."""
    bad, good = Double(BAD[why]), Double([event(TOKENS, 4, LENGTH), DONE])
    with serving(bad, good):
        outcome, _ = run(bad, good)
    assert outcome.tokens == TOKENS and outcome.tries == 2
    assert [one.body["rid"] for one in good.asked] == ["r try 2;1"]
    with serving(bad), pytest.raises(Unavailable):
        run(bad)


def test_what_comes_with_an_abort_is_no_token_of_the_answer() -> None:
    """SGLang says the last one once more where it gives a request up that had made room."""
    abort = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    gives_up = Double([event([7], 1), event([8], 2), event([8], 2, abort), DONE])
    goes_on = Double([event([8], 1), event([9, 10], 3, LENGTH), DONE])
    with serving(gives_up, goes_on):
        outcome, told = run(gives_up, goes_on)
    assert outcome.tokens == TOKENS == [token for token, _ in told]
    assert goes_on.asked[0].body["input_ids"] == [*PROMPT, 7]
    with serving(gives_up), pytest.raises(Unavailable, match="queue is full"):
        run(gives_up)


def test_a_prompt_that_its_scheduler_refuses_is_refused_in_its_words() -> None:
    """It runs one token in the prompt's place, and says what came of that."""
    abort = {"type": "abort", "message": "Input length is too long.", "status_code": 400}
    servers = [Double([event([0], 1, abort), DONE]) for _ in range(2)]
    told: list[Any] = []
    with serving(*servers), pytest.raises(Invalid, match="Input length is too long"):
        told = run(*servers)[1]
    assert not told


def test_a_logprob_that_underflowed_is_the_least_there_is() -> None:
    rows = [[-0.5, 7, None]]
    tops = [[[-0.5, 7, None], [-3.4e38, 8, None]]]
    said = {"output_token_logprobs": rows, "output_top_logprobs": tops}
    server = Double([event([7], 1, STOP, **said), DONE])
    with serving(server):
        _, told = run(server, logprobs=2)
    assert told == [(7, Logprobs(-0.5, ((7, -0.5), (8, -9_999.0))))]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"output_token_logprobs": [[-0.5, 8, None]]},
        {"output_token_logprobs": [[-0.5, 7, None]] * 2},
        {"output_token_logprobs": [["x", 7, None]]},
        {"output_token_logprobs": [7]},
    ],
)
def test_logprobs_that_are_not_what_was_asked_for_are_no_answer(said: dict[str, Any]) -> None:
    server = Double([event([7], 1, STOP, **said), DONE])
    with serving(server), pytest.raises(Unavailable, match="logprob"):
        run(server, logprobs=0)


def test_what_all_would_refuse_is_refused_in_the_server_s_words() -> None:
    refusal = {"error": {"message": "that is longer than the context", "code": 400}}
    servers = [Double([refusal, DONE]), Double([refusal, DONE])]
    with serving(*servers), pytest.raises(Invalid, match="longer than the context"):
        run(*servers)


def test_as_many_as_fit_are_as_many_as_the_server_has_place_for() -> None:
    server = Double(ONLY_NEW, model_len=104)
    with serving(server):
        outcome, _ = run(server, new=1_000, as_many_as_fit=True)
    assert outcome.tokens == TOKENS
    asked = [one.body["sampling_params"]["max_new_tokens"] for one in server.asked]
    assert asked == [1_000, 4]
    # Else the second would be ended by what ends the first, once that is over.
    assert [one.body["rid"] for one in server.asked] == ["r;1", "r;2"]


def test_an_answer_ends_where_the_model_ends_it() -> None:
    server = Double([event([7], 1), event([7, 2], 2, STOP), DONE])
    with serving(server):
        outcome, _ = run(server)
    assert (outcome.tokens, outcome.reason) == ([7, 2], "stop")
