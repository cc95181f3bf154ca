"""JSON that is written as it comes, and answers that are made of it: whoever asks for much keeps
nobody else waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.config import GatewayConfig
from kvstore.gateway.caller import Caller as Asker
from kvstore.gateway.http import answers, written
from kvstore.gateway.http.growing import Said
from kvstore.gateway.http.logprobs import of_chat, of_completion
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.text import Text
from kvstore.gateway.http.written import Lists, Written, parts_of
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.logprobs import Logprobs
from tests.gateway.http.test_app import Caller, Reply, Scripted

TOKENS = tuple(range(20, 60))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some),
    max_leaves=8,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "PART_BYTES", 64)


@given(VALUES)
def test_parts_make_up_what_json_has(value: Any) -> None:
    assert json.loads(b"".join(parts_of(value))) == value


@given(st.lists(st.lists(VALUES, max_size=3), max_size=9))
def test_a_list_that_grew_is_the_whole_of_it(lists: list[list[Any]]) -> None:
    one = Written()
    for values in lists:
        one.extend(values)
    whole = [value for values in lists for value in values]
    assert json.loads(b"".join(parts_of({"of": one}))) == {"of": whole}


def test_what_is_written_is_written_once_however_often_it_is_said(small: None) -> None:
    one = Lists()
    for number in range(99):
        one.add({"numbers": [number], "refusal": None})
    parts = parts_of([{"logprobs": one.whole}] * 3)
    wanted = {"logprobs": {"numbers": list(range(99)), "refusal": None}}
    assert json.loads(b"".join(parts)) == [wanted] * 3
    assert len(set(map(id, parts))) < len(parts), "they are the same bytes, and no copies"


class Likely(Scripted):
    """Says with each token which are likeliest."""

    def run(self, request: Request, told: Told, caller: Asker | None, _: Outcome) -> Outcome:
        for token in TOKENS:
            told(token, Logprobs(-0.5, tuple((20 + at, -1.0 * at) for at in range(5))))
        return Outcome(tokens=list(TOKENS), reason="length")


class Turns:
    """Counts how often others have a turn, and in which of them logprobs were made, of how many
    tokens."""

    def __init__(self) -> None:
        self.now, self.made = 0, list[tuple[int, int]]()

    async def keep(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def of_chat(self, text: Text, said: Sequence[Said]) -> dict[str, Any]:
        self.made += [(self.now, len(said))] if said else []
        return of_chat(text, said)

    def of_completion(self, text: Text, said: Sequence[Said]) -> dict[str, Any]:
        self.made += [(self.now, len(said))] if said else []
        return of_completion(text, said)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    one = Turns()
    monkeypatch.setattr(answers, "of_chat", one.of_chat)
    monkeypatch.setattr(answers, "of_completion", one.of_completion)
    return one


def asked(chatting: Path, turns: Turns, path: str, **fields: Any) -> Reply:
    served = Served.of(GatewayConfig(chatting, engines=("127.0.0.1:1",)))
    body = {"model": "tiny", "max_tokens": len(TOKENS), "n": 3, **fields}

    async def run() -> Reply:
        others = asyncio.create_task(turns.keep())
        try:
            return await Caller(served, Likely()).call("POST", path, json.dumps(body).encode())
        finally:
            others.cancel()

    return asyncio.run(run())


CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "w5", "logprobs": 5},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "w5"}],
        "logprobs": True,
        "top_logprobs": 5,
    },
}


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("stream", [False, True])
def test_each_token_s_logprobs_are_made_once_and_others_have_their_turns_in_between(
    chatting: Path, turns: Turns, path: str, stream: bool
) -> None:
    reply = asked(chatting, turns, path, stream=stream, **CALLS[path])
    assert reply.status == 200
    assert [tokens for _, tokens in turns.made] == [1] * len(TOKENS)
    assert len({turn for turn, _ in turns.made}) == len(TOKENS)


@pytest.mark.parametrize("path", CALLS)
def test_a_long_answer_is_whole_and_says_how_long_it_is(
    chatting: Path, turns: Turns, path: str, small: None
) -> None:
    reply = asked(chatting, turns, path, **CALLS[path])
    assert int(reply.headers["content-length"]) == len(reply.body)
    choices = json.loads(reply.body)["choices"]
    of = "content" if "chat" in path else "tokens"
    assert [len(one["logprobs"][of]) for one in choices] == [len(TOKENS)] * 3
    assert all(one["logprobs"] == choices[0]["logprobs"] for one in choices)
