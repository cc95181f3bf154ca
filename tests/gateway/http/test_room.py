"""Engines whose room is smaller than the model's positions: chats that name no `max_tokens` take
what they have, or what the gateway was told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.http.conftest import House, client_of

PAGE, PAGES = 64, 4


@pytest.fixture(scope="module")
def small(chatting: Path) -> Iterator[House]:
    options = ("--pages", str(PAGES), "--page-tokens", str(PAGE))
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        house = House(chatting, Path(directory), *options)
        try:
            yield house
        finally:
            house.close()


def chat(ai: openai.OpenAI, **options: Any) -> Any:
    said: Any = [{"role": "user", "content": "w1 w2 w3"}]
    return ai.chat.completions.create(
        model="tiny", messages=said, extra_body={"ignore_eos": True}, **options
    )


@pytest.mark.parametrize("knows", ["a conductor", "an engine"])
def test_a_chat_of_no_said_length_is_as_long_as_engines_have_room_for(
    small: House, knows: str
) -> None:
    option = ("--conductor", small.conductor.address)
    if knows == "an engine":
        option = ("--engine", small.engines[0].address)
    with small.serving("serve", *option) as gateway, client_of(gateway) as ai:
        answer = chat(ai)
        assert answer.usage.total_tokens == PAGES * PAGE
        assert answer.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError):
            chat(ai, max_completion_tokens=PAGES * PAGE)


def test_or_as_the_gateway_was_told(small: House) -> None:
    told = (*small.knows, "--answer-tokens", "5")
    with small.serving("told", *told) as gateway, client_of(gateway) as ai:
        assert chat(ai).usage.completion_tokens == 5
        assert chat(ai, max_completion_tokens=9).usage.completion_tokens == 9
