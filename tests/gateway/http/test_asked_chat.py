"""What a body of a chat may say: all that is served, and of the rest which field is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.asked_chat import asked_chat
from kvstore.gateway.http.refusal import BadField, UnknownModel
from kvstore.gateway.http.template import Conversation, Message
from kvstore.limits import SERVE_MESSAGES_MAX

HELLO = {"role": "user", "content": "hello"}


def read(**fields: Any) -> Asked:
    return asked_chat(json.dumps({"model": "m", "messages": [HELLO], **fields}).encode(), ["m"])


def said(*messages: Any) -> list[tuple[str, str]]:
    (found,) = read(messages=list(messages)).prompts
    assert isinstance(found, Conversation)
    return [(one.role, one.content) for one in found.messages]


def test_messages_alone_are_enough_and_end_where_the_model_does() -> None:
    assert read() == Asked("m", (Conversation((Message("user", "hello"),)),))


def test_messages_are_texts_or_parts_that_are_texts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = said({"role": "developer", "content": "d"}, {"role": "user", "content": parts}, HELLO)
    assert found == [("system", "d"), ("user", "a\nb"), ("user", "hello")]
    assert said({**HELLO, "name": None}) == [("user", "hello")]


def test_a_limit_has_two_names() -> None:
    assert read(max_tokens=5).max_tokens == read(max_completion_tokens=5).max_tokens == 5
    assert read(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert read(max_tokens=5).limit == "max_tokens"
    assert read(max_completion_tokens=5).limit == "max_completion_tokens"
    with pytest.raises(BadField, match="say two things"):
        read(max_tokens=5, max_completion_tokens=6)


def test_logprobs_may_be_of_the_tokens_alone_or_of_twenty_beside_each() -> None:
    assert read().logprobs is None and read(logprobs=True).logprobs == 0
    assert read(logprobs=True, top_logprobs=20).logprobs == 20
    with pytest.raises(BadField, match="is for logprobs = true"):
        read(logprobs=False, top_logprobs=1)


def test_what_makes_no_difference_is_let_pass() -> None:
    plain = {
        "n": 1,
        "temperature": 0,
        "logprobs": False,
        "top_logprobs": 0,
        "tools": None,
        "top_p": 0.5,
        "store": True,
    }
    assert read(**plain, response_format={"type": "text"}) == read()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("messages", value) for value in (None, [], "hello", [1], [[]], [HELLO] * 1_025)],
        *[("messages", [{**HELLO, "role": role}]) for role in (None, "tool", 5)],
        *[("messages", [{**HELLO, "content": one}]) for one in (None, 5, [5], ["a"], "\ud800")],
        ("messages", [{**HELLO, "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages", [{**HELLO, "content": [{"type": "text", "text": 5}]}]),
        ("messages", [{**HELLO, "tool_calls": []}]),
        *[("tools", [{}]), ("response_format", {"type": "json_object"})],
        *[("logprobs", value) for value in (1, "true")],
        *[("top_logprobs", value) for value in (-1, 21, True, 1.5, 5)],
        *[("temperature", 3), ("stop", ""), ("audio", {}), ("max_completion_tokens", 0)],
    ],
)
def test_what_is_not_served_is_refused_by_its_name(field: str, value: Any) -> None:
    assert SERVE_MESSAGES_MAX < 1_025
    with pytest.raises(BadField) as refused:
        read(**{field: value})
    assert refused.value.param == field and len(str(refused.value)) < 200


def test_another_model_is_not_served() -> None:
    with pytest.raises(UnknownModel):
        read(model="other")
