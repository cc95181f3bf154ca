"""What was found of a prompt that one engine prefills and another decodes, also where its caller
has enough before the answer is whole."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.gateway import dispatch
from kvstore.gateway.caller import Caller
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.engines import Engines, Prefill
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import One
from kvstore.logprobs import Logprobs
from tests.gateway.engine_doubles import PROMPT, TOKENS, Double, Endless, Planner, serving
from tests.nodes import CALL_SECONDS, SPEC


class Followed(Endless):
    """Has loaded all but the last token, and goes on until its caller hangs up."""

    def Generate(self, request: Any, context: Any) -> Any:
        whole = Double.Generate(self, request, context)
        yield next(whole)  # what it loaded
        yield from super().Generate(request, context)


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[Prefill]:
    """Those that were begun."""
    begun: list[Prefill] = []
    begin = Engines.prefill

    def prefill(engines: Engines, *of: Any) -> Prefill:
        begun.append(begin(engines, *of))
        return begun[-1]

    monkeypatch.setattr(dispatch.Engines, "prefill", prefill)
    return begun


def ran_until_enough(first: Double, prefills: list[Prefill], until_over: float) -> Outcome:
    """Its caller has enough with its first token, for which it waits until the prefill is over."""
    second, caller = Followed(), Caller()

    def heard(token: int, logprobs: Logprobs | None) -> None:
        prefills[0]._over.wait(until_over)
        caller.enough()

    with serving(first, second):
        dispatcher = Dispatcher(Planner(first.address, second.address), One(SPEC), (), OPEN)
        out = dispatcher.run(Request("r", PROMPT, len(TOKENS)), heard, caller)
        dispatcher.close()
    assert out.tokens == TOKENS[:1]
    return out


def test_what_was_prefilled_for_a_request_is_not_found_where_its_caller_has_enough_either(
    prefills: list[Prefill],
) -> None:
    out = ran_until_enough(Double(reused=64), prefills, CALL_SECONDS)
    assert (out.pool_tokens, out.hand_off_tokens, out.miss) == (64, 35, "absent")
    assert not out.untold


def test_where_nobody_hears_what_the_prefill_found_it_is_not_known(
    prefills: list[Prefill],
) -> None:
    """By the engine that decodes alone, what was prefilled for it would count as found."""
    assert ran_until_enough(Double(lasts=True), prefills, 0.0).untold
