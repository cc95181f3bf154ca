"""A prompt that one vLLM server prefills and another follows: what either is asked, what is made of
what they say, and what becomes of the request where the one that prefills fails."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from kvstore.config import OPEN
from kvstore.errors import Overloaded
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import One
from kvstore.wire.v1 import conductor_pb2
from tests.gateway import engine_doubles
from tests.gateway.openai_server import BREAK, DONE, WAIT, Double, serving, told, used
from tests.gateway.test_adapters import Known
from tests.nodes import CALL_SECONDS, SPEC

PROMPT = tuple(range(100))
TOKENS = [7, 8, 9, 10]
ANSWER = (told(TOKENS[:3]), told(TOKENS[3:], "length"), used(96), DONE)
PREFILLED = (told([7], "length"), used(32), DONE)


class Planner(engine_doubles.Planner):
    """Who prefills begins after `wait_ms`, at the node n; who decodes is the second where it is."""

    wait_ms = 0.0

    def schedule(
        self, request: conductor_pb2.ScheduleRequest
    ) -> conductor_pb2.ScheduleReply | None:
        reply = super().schedule(request)
        assert reply is not None
        reply.prefill.node_id, reply.wait_ms = "n", self.wait_ms
        reply.decode.data_parallel_rank = 1
        return reply


def run(planner: engine_doubles.Planner, **options: Any) -> Outcome:
    with closing(Dispatcher(planner, One(SPEC), (), OPEN)) as dispatcher:
        return dispatcher.run(Request("r", PROMPT, len(TOKENS), **options))


def said(server: Double) -> dict[str, str]:
    """What the connector there is told of the one request that it was sent."""
    (asked,) = server.asked
    told: dict[str, str] = asked.body["kv_transfer_params"]["moonpool"]
    return told


def test_one_prefills_and_another_follows_it_under_a_name_that_both_are_told() -> None:
    prefill, decode = Double(PREFILLED), Double(ANSWER)
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address)
        outcomes = [run(planner, salt="s", ignore_eos=True) for _ in range(2)]
    for outcome in outcomes:
        assert outcome.tokens == TOKENS and outcome.reason == "length"
        assert outcome.engines == [prefill.address, decode.address]
    names = set()
    for first, second in zip(prefill.asked, decode.asked, strict=True):
        name = first.body["kv_transfer_params"]["moonpool"]["hand_off"]
        names.add(name)
        about = {"request": "r", "hand_off": name}
        assert first.body["kv_transfer_params"]["moonpool"] == about
        follows = {"request": "r", "follow": name, "follow_at": "n"}
        assert second.body["kv_transfer_params"]["moonpool"] == follows
        assert (first.body["max_tokens"], second.body["max_tokens"]) == (1, len(TOKENS))
        for one in (first, second):
            assert one.body["prompt"] == list(PROMPT) and one.body["cache_salt"] == "s"
        assert "X-data-parallel-rank" not in first.headers
        assert second.headers["X-data-parallel-rank"] == "1"
    assert len(names) == 2 and min(map(len, names)) == 32, "nobody guesses one"
    phases = [one.phase for one in planner.asked]
    assert phases == 2 * [conductor_pb2.PREFILL, conductor_pb2.DECODE]


def test_what_the_prefill_had_from_the_pool_is_told_apart_from_what_was_handed_over() -> None:
    prefill, decode = Double(PREFILLED), Double(ANSWER)
    with serving(prefill, decode):
        outcome = run(Planner(prefill.address, decode.address))
    assert (outcome.pool_tokens, outcome.hand_off_tokens) == (32, 64)
    assert outcome.computed_tokens == 4 and not outcome.untold


@pytest.mark.parametrize(("there", "follows"), [(0, True), (1, False)])  # of a block of 64 tokens
def test_a_prompt_of_which_nearly_all_is_in_the_pool_is_decoded_alone(
    there: int, follows: bool
) -> None:
    prefill, decode = Double(PREFILLED), Double(ANSWER)
    with serving(prefill, decode):
        computed = 100 - 64 * there
        run(Planner(prefill.address, decode.address, computed=computed, there=there))
    assert len(prefill.asked) == follows
    assert ("follow" in said(decode)) == follows


def test_nobody_follows_who_is_not_told_where_it_is_stored() -> None:
    """As by a conductor of before that was said."""
    prefill, other = Double(ANSWER), Double(ANSWER)
    with serving(prefill, other):
        outcome = run(engine_doubles.Planner(prefill.address, other.address))
    assert outcome.tokens == TOKENS and outcome.engines == [prefill.address]
    assert "hand_off" not in said(prefill) and not other.asked


def test_more_than_its_prompt_is_not_believed_to_be_found_by_a_prefill() -> None:
    prefill = Double((told([7], "length"), used(1 << 40), DONE))
    decode = Double(ANSWER)
    with serving(prefill, decode):
        outcome = run(Planner(prefill.address, decode.address))
    assert outcome.tokens == TOKENS and outcome.untold


@pytest.mark.parametrize("kinds", [("http", "sglang"), ("sglang", "http"), ("http", "")])
def test_servers_that_cannot_meet_are_not_both_sent_a_prompt(kinds: tuple[str, str]) -> None:
    """The one that is to prefill it has all of it."""
    prefill, other = Double(ANSWER), Double(ANSWER)
    with serving(prefill, other):
        places = [
            f"{kind}://{one.address.removeprefix('http://')}".removeprefix("://")
            for kind, one in zip(kinds, (prefill, other), strict=True)
        ]
        if kinds[0] == "sglang":
            whole = {"output_ids": TOKENS, "meta_info": {"finish_reason": {"type": "length"}}}
            prefill.events = (whole, DONE)
        outcome = run(Planner(*places))
    assert outcome.tokens == TOKENS and outcome.engines == places[:1]
    assert len(prefill.asked) == 1 and not other.asked


def test_nobody_is_to_follow_a_prefill_that_is_refused() -> None:
    prefill, decode = Double(("{}",), status=429), Double(ANSWER)
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address)
        with pytest.raises(Overloaded):
            run(planner)
    assert not decode.asked
    assert planner.given_up == ["r"], "and no conductor waits for it"


@pytest.mark.parametrize("events", [(BREAK,), ({"error": {"message": "no", "code": 500}},)])
def test_a_prefill_that_fails_before_its_turn_is_followed_by_nobody(events: Any) -> None:
    prefill, decode = Double(events), Double(ANSWER)
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address)
        planner.wait_ms = 1e3 * CALL_SECONDS
        with closing(Dispatcher(planner, One(SPEC), (decode.address,), OPEN)) as dispatcher:
            outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS)))
    assert outcome.tokens == TOKENS and "follow" not in said(decode)
    assert outcome.engines == [prefill.address, decode.address]


def test_a_prefill_that_has_not_begun_when_its_turn_should_come_is_followed_all_the_same() -> None:
    """And one that is not over when all is decoded is of no use any more."""
    prefill, decode = Double((WAIT,)), Double(ANSWER)
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address)
        planner.wait_ms = 50
        outcome = run(planner)
        assert prefill.left.wait(CALL_SECONDS)
    assert outcome.tokens == TOKENS and "follow" in said(decode)
    assert outcome.untold, "nobody says what of it was in the pool"


def test_who_decodes_is_asked_as_soon_as_the_prefill_is_over() -> None:
    prefill, decode = Double(PREFILLED), Double(ANSWER)
    with serving(prefill, decode):
        planner = Planner(prefill.address, decode.address)
        planner.wait_ms = 1e3 * CALL_SECONDS
        over = threading.Event()
        thread = threading.Thread(target=lambda: (run(planner), over.set()))
        thread.start()
        assert over.wait(CALL_SECONDS / 2), "it waited for as long as was thought"
        thread.join()


def test_a_prefill_under_an_adapter_is_of_that_adapter_and_asked_of_who_has_it() -> None:
    lacks, decode = Double(("{}",), status=404), Double(ANSWER)
    with serving(lacks, decode):
        planner = Planner(lacks.address, decode.address)
        spaces = Known(lacks.address, decode.address)
        with closing(Dispatcher(planner, spaces, (), OPEN)) as dispatcher:
            outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS), adapter="french"))
    assert outcome.tokens == TOKENS and outcome.engines == [lacks.address, decode.address]
    assert [one.asked[0].body["model"] for one in (lacks, decode)] == ["french", "french"]
    assert "hand_off" in said(lacks) and "follow" not in said(decode)
    assert planner.asked[-1].not_at == [lacks.address]
