"""Of a prompt of which no server said how much it had, nobody says that it had none."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.gateway.caller import Caller
from kvstore.gateway.counted import count
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.http.answers import usage_of
from kvstore.gateway.recent import Recent
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import One
from kvstore.logprobs import Logprobs
from kvstore.telemetry import GATEWAY, Telemetry
from tests.gateway import engine_doubles
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import BREAK, DONE, WAIT, Double, serving, told, used
from tests.nodes import SPEC

PROMPT = engine_doubles.PROMPT
TOKENS = engine_doubles.TOKENS
REQUEST = Request("r", PROMPT, len(TOKENS))
NO_DETAILS: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": len(PROMPT)}}


def ran(*engines: str, enough_at: int | None = None) -> Outcome:
    """Its caller has enough at that token."""
    dispatcher, caller = Dispatcher(Nobody(), One(SPEC), engines, OPEN), Caller()

    def heard(token: int, logprobs: Logprobs | None) -> None:
        if token == enough_at:
            caller.enough()

    try:
        return dispatcher.run(REQUEST, heard, caller)
    finally:
        dispatcher.close()


def untold() -> Outcome:
    return Outcome(tokens=TOKENS, untold=True, expected_tokens=64, tries=1, seconds=1.0)


def test_who_has_enough_before_vllm_has_said_all_is_not_told_what_it_had() -> None:
    server = Double((told(TOKENS[:2]), WAIT))
    with serving(server):
        assert ran(server.address, enough_at=TOKENS[1]).untold


@pytest.mark.parametrize("last", [(BREAK,), (DONE,), (NO_DETAILS, DONE)])
def test_a_server_that_does_not_say_what_it_had_of_a_prompt_did_not_say_none(last: Any) -> None:
    """As one that is started without `--enable-prompt-tokens-details`."""
    server = Double((told(TOKENS, "length"), *last))
    with serving(server):
        assert ran(server.address).untold


def test_none_and_some_are_told() -> None:
    for cached in (0, 64):
        server = Double((told(TOKENS, "length"), used(cached), DONE))
        with serving(server):
            outcome = ran(server.address)
        assert (outcome.pool_tokens, outcome.untold) == (cached, False)


def test_what_another_engine_had_of_it_is_nothing_that_the_last_one_says() -> None:
    dying, server = engine_doubles.Double(dies_after=2), Double((told(TOKENS[1:], "stop"), BREAK))
    with engine_doubles.serving(dying), serving(server):
        outcome = ran(dying.address, server.address)
    assert outcome.tokens == TOKENS and outcome.untold and outcome.pool_tokens == 0


def test_an_engine_of_ours_says_it_before_its_first_token() -> None:
    double = engine_doubles.Double()
    with engine_doubles.serving(double):
        outcome = ran(double.address, enough_at=TOKENS[0])
    assert (outcome.pool_tokens, outcome.untold) == (99, False)


def test_callers_are_told_a_number_only_where_there_is_one() -> None:
    assert usage_of([PROMPT], [untold()], 4)["prompt_tokens_details"] is None
    two = [untold(), Outcome(pool_tokens=64)]
    assert usage_of([PROMPT] * 2, two, 4)["prompt_tokens_details"] is None
    assert usage_of([PROMPT], two[1:], 4)["prompt_tokens_details"] == {"cached_tokens": 64}


def test_the_hit_rate_is_of_prompts_of_which_it_is_known() -> None:
    telemetry = Telemetry(GATEWAY)
    count(telemetry, len(PROMPT), untold())
    assert {name: total for name, total in telemetry.totals().items() if total} == {
        "requests.whole": 1,
        "request_output_tokens": len(TOKENS),
    }


def test_people_are_shown_no_number_either() -> None:
    recent = Recent()
    recent.add(REQUEST, "whole", untold())
    assert recent.newest()[0]["cached_tokens"] is None
