"""Chats with `moonpool serve` by OpenAI's own client, before real engines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from kvstore.engine.reference import Reference
from tests.gateway.http.conftest import House, client_of

NEW = 12
SAID = [
    {"role": "system", "content": "w1 w2 w3"},
    {"role": "user", "content": " ".join(f"w{number}" for number in range(80))},
]


@pytest.fixture(scope="module")
def ai(chatting: Path) -> Iterator[openai.OpenAI]:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        house = House(chatting, Path(directory))
        try:
            with house.serving("serve", *house.knows) as gateway, client_of(gateway) as client:
                yield client
        finally:
            house.close()


def chat(ai: openai.OpenAI, messages: Any = SAID, **options: Any) -> Any:
    return ai.chat.completions.create(
        model="tiny",
        messages=messages,
        max_completion_tokens=NEW,
        extra_body={"ignore_eos": True},
        **options,
    )


@pytest.fixture(scope="module")
def expected(model_dir: Path, reference: Reference) -> str:
    """What the model goes on with behind its template's text, computed alone."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    text = "".join(f"{one['role']} {one['content']} w9\n" for one in SAID) + "assistant"
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    answer = reference.tokens(tokens, NEW)
    return str(tokenizer.decode([*tokens, *answer]).removeprefix(tokenizer.decode(tokens)))


def test_a_chat_is_the_engines_own_answer_behind_the_models_template(
    ai: openai.OpenAI, expected: str
) -> None:
    answer = chat(ai)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected)
    assert choice.finish_reason == "length" and answer.object == "chat.completion"
    assert answer.usage.completion_tokens == NEW and answer.id.startswith("chatcmpl-")


def test_a_stream_of_it_begins_with_who_speaks_and_says_the_same(
    ai: openai.OpenAI, expected: str
) -> None:
    first, *told, last = chat(ai, stream=True, stream_options={"include_usage": True})
    assert first.choices[0].delta.role == "assistant" and first.object == "chat.completion.chunk"
    assert "".join(one.choices[0].delta.content or "" for one in told) == expected
    assert [one.choices[0].finish_reason for one in told][-1] == "length"
    assert last.usage.completion_tokens == NEW and not last.choices


def test_each_token_of_it_has_its_logprobs_if_they_are_wanted(
    ai: openai.OpenAI, expected: str
) -> None:
    (choice,) = chat(ai, logprobs=True, top_logprobs=20).choices
    content = choice.logprobs.content
    assert len(content) == NEW and choice.logprobs.refusal is None
    assert bytes(byte for one in content for byte in one.bytes).decode() == expected
    for one in content:
        values = [each.logprob for each in one.top_logprobs]
        assert len(values) == 20 and values == sorted(values, reverse=True)
        assert (one.token, one.bytes, one.logprob) == (
            one.top_logprobs[0].token,
            one.top_logprobs[0].bytes,
            one.top_logprobs[0].logprob,
        )
    streamed = []
    for chunk in chat(ai, logprobs=True, top_logprobs=20, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert [one.token for one in streamed] == [one.token for one in content]
    own = [one.logprob for one in content]
    assert [one.logprob for one in streamed] == pytest.approx(own, abs=1e-4)
    alone = chat(ai, logprobs=True).choices[0].logprobs.content
    assert [one.top_logprobs for one in alone] == [[]] * NEW
    assert chat(ai).choices[0].logprobs is None


@pytest.mark.parametrize("wanted", [{"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}])
def test_logprobs_that_are_not_served_are_refused_by_their_field(
    ai: openai.OpenAI, wanted: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(ai, **wanted)
    assert refused.value.param == "top_logprobs"


def test_what_was_said_before_is_cached_when_it_goes_on(ai: openai.OpenAI) -> None:
    before = chat(ai).choices[0].message
    more = [*SAID, {"role": "assistant", "content": before.content}]
    again = chat(ai, [*more, {"role": "user", "content": "w5"}]).usage
    assert again.prompt_tokens_details.cached_tokens >= 64


def test_without_a_limit_it_goes_on_to_the_end(ai: openai.OpenAI) -> None:
    long = [{"role": "user", "content": " ".join(["w7"] * 1_000)}]
    answer = ai.chat.completions.create(
        model="tiny", messages=long, extra_body={"ignore_eos": True}
    )
    assert answer.usage.total_tokens == 1_024 and answer.choices[0].finish_reason == "length"


def test_what_is_wrong_is_refused_by_its_field(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(ai, [{"role": "tool", "content": "x"}])
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as refused:
        chat(ai, [{"role": "user", "content": " ".join(["w7"] * 1_100)}])
    assert refused.value.code == "context_length_exceeded"
