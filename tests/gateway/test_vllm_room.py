"""Servers of OpenAI's API that take fewer tokens than the model has positions for: of an answer for
which nobody named a length they give what they have place for, and other answers they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.errors import Invalid
from kvstore.gateway import events
from tests.gateway.engine_doubles import PROMPT, TOKENS, Nobody, run
from tests.gateway.openai_server import BREAK, DONE, Double, serving, told

SHORT = (told(TOKENS[:2]), told([], "length"), DONE)


def lengths(server: Double) -> list[Any]:
    """Of each call, how long an answer it asked for."""
    return [one.body["max_tokens"] for one in server.asked]


def test_of_as_many_tokens_as_fit_a_server_is_asked_for_those_that_it_has_place_for() -> None:
    server = Double(SHORT, model_len=len(PROMPT) + 2)
    with serving(server):
        tokens, outcome = run(Nobody(), server.address, as_many_as_fit=True)
    assert tokens == TOKENS[:2] and (outcome.reason, outcome.tries) == ("length", 1)
    assert lengths(server) == [len(TOKENS), 2]


def test_where_all_fit_they_are_asked_for_at_once() -> None:
    whole = (told(TOKENS, "length"), DONE)
    server = Double(whole, model_len=len(PROMPT) + len(TOKENS))
    with serving(server):
        assert run(Nobody(), server.address, as_many_as_fit=True)[0] == TOKENS
    assert lengths(server) == [len(TOKENS)]


@pytest.mark.parametrize("room", [0, -5])
def test_a_prompt_behind_which_no_token_fits_is_refused_in_the_server_s_words(room: int) -> None:
    server = Double(SHORT, model_len=len(PROMPT) + room)
    with serving(server), pytest.raises(Invalid, match="larger than max_model_len"):
        run(Nobody(), server.address, as_many_as_fit=True)
    assert lengths(server) == [len(TOKENS)]


def test_as_many_tokens_as_somebody_asked_for_are_given_or_refused() -> None:
    server = Double(SHORT, model_len=len(PROMPT) + 2)
    with serving(server), pytest.raises(Invalid, match="larger than max_model_len"):
        run(Nobody(), server.address)
    assert lengths(server) == [len(TOKENS)]


def test_what_is_refused_for_another_reason_is_refused_by_that() -> None:
    server = Double(({"error": {"message": "because"}},), 400)
    with serving(server), pytest.raises(Invalid, match="because"):
        run(Nobody(), server.address, as_many_as_fit=True)
    assert lengths(server) == [len(TOKENS)]


def test_behind_tokens_that_were_told_as_many_as_fit_are_what_is_left_of_a_servers_place() -> None:
    bad = Double((told(TOKENS[:2]), BREAK))
    good = Double((told(TOKENS[1:3], "length"), DONE), model_len=len(PROMPT) + 3)
    with serving(bad, good):
        tokens, outcome = run(Nobody(), bad.address, good.address, as_many_as_fit=True)
    assert tokens == TOKENS[:3] and outcome.tries == 2
    assert [one.body["prompt"][len(PROMPT) :] for one in good.asked] == [TOKENS[:1]] * 2
    assert lengths(good) == [3, 2]


def test_an_answer_that_had_begun_is_not_asked_for_twice() -> None:
    wrong = {"error": {"message": "because", "code": 400}}
    server = Double((told(TOKENS[:1]), wrong, DONE), model_len=len(PROMPT) + len(TOKENS))
    with serving(server), pytest.raises(Invalid, match="because"):
        run(Nobody(), server.address, as_many_as_fit=True)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b'{"data": 3}', b'{"data": [3, {}, {"max_model_len": "9"}]}', b"{" + b" " * 2**21],
)
def test_a_server_that_does_not_say_how_much_it_takes_has_said_nothing(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "answer_of", lambda *_: (200, said))
    assert events.model_len("http://127.0.0.1:9", 1.0) == 0
