"""Logprobs as OpenAI's own client reads them, before real engines: transformers' own, of the tokens
of the text that is answered, whole or as a stream."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from kvstore.config import GatewayConfig
from kvstore.engine.reference import Reference
from kvstore.gateway.http import logprobs
from kvstore.gateway.http.growing import Said
from kvstore.gateway.http.logprobs import of_chat, of_completion
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.text import Text
from kvstore.logprobs import Logprobs
from tests.engine.runs import prompt
from tests.gateway.http.conftest import House, client_of
from tests.gateway.http.test_app import Scripted, asked
from tests.gateway.http.test_counting import counted
from tests.gateway.http.test_text import END, bytes_alone

NEW = 12
ON = {"ignore_eos": True}  # a random model ends at random


@pytest.fixture(scope="module")
def words(model_dir: Path) -> list[str]:
    """Of each token, as a text has it behind another."""
    text = Text(model_dir)
    return [text.spelled(token).text for token in range(512)]


def ask(ai: openai.OpenAI, tokens: Any, **options: Any) -> Any:
    return ai.completions.create(
        model="tiny", prompt=tokens, max_tokens=NEW, extra_body=ON, **options
    )


def expected(reference: Reference, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
    """The answer's tokens, and of each of its places the logprobs of all (NEW, vocab)."""
    answer = reference.tokens(tokens, NEW)
    logits = reference.logits([*tokens, *answer])[len(tokens) - 1 : -1]
    return answer, logits.log_softmax(-1, dtype=torch.float32)


def streamed(chunks: Any) -> dict[str, list[Any]]:
    """A stream's logprobs, put together."""
    found: dict[str, list[Any]] = {}
    for chunk in chunks:
        if chunk.choices[0].logprobs is not None:
            for name, values in chunk.choices[0].logprobs.model_dump().items():
                found.setdefault(name, []).extend(values or [])
    return found


def test_a_completion_has_those_that_transformers_computes(
    ai: openai.OpenAI, reference: Reference, words: list[str]
) -> None:
    tokens = prompt(100, seed=1)
    answer, every = expected(reference, tokens)
    (choice,) = ask(ai, tokens, logprobs=5).choices
    said = choice.logprobs
    assert said.tokens == [words[one] for one in answer] and "".join(said.tokens) == choice.text
    own = [float(every[at, one]) for at, one in enumerate(answer)]
    assert said.token_logprobs == pytest.approx(own, abs=1e-4)
    for at, top in enumerate(said.top_logprobs):
        values, ids = every[at].topk(5)
        wanted = {
            words[one]: value for one, value in zip(ids.tolist(), values.tolist(), strict=True)
        }
        assert top == pytest.approx(wanted, abs=1e-4)
    starts = [sum(map(len, said.tokens[:at])) for at in range(NEW)]
    assert said.text_offset == starts


def test_a_token_s_own_comes_also_where_none_of_the_likeliest_are_wanted(
    ai: openai.OpenAI,
) -> None:
    said = ask(ai, prompt(100, seed=1), logprobs=0).choices[0].logprobs
    pairs = zip(said.tokens, said.token_logprobs, strict=True)
    assert said.top_logprobs == [{token: value} for token, value in pairs]


def test_who_does_not_ask_has_none(ai: openai.OpenAI) -> None:
    assert ask(ai, prompt(100, seed=1)).choices[0].logprobs is None
    assert not streamed(ask(ai, prompt(100, seed=1), stream=True))


def alike(found: dict[str, list[Any]], wanted: dict[str, list[Any]]) -> None:
    """Of the same tokens, by arithmetic that may be cut otherwise: more was in the pool."""
    assert (found["tokens"], found["text_offset"]) == (wanted["tokens"], wanted["text_offset"])
    assert found["token_logprobs"] == pytest.approx(wanted["token_logprobs"], abs=1e-4)
    for one, other in zip(found["top_logprobs"], wanted["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_stream_has_the_same_and_each_piece_those_of_its_own_text(ai: openai.OpenAI) -> None:
    tokens = prompt(90, seed=2)
    whole = ask(ai, tokens, logprobs=3).choices[0]
    chunks = list(ask(ai, tokens, logprobs=3, stream=True))
    alike(streamed(chunks), whole.logprobs.model_dump())
    for chunk in chunks:
        (choice,) = chunk.choices
        assert "".join(choice.logprobs.tokens if choice.logprobs else []) == choice.text
    assert len(chunks) > NEW // 2


def test_what_a_text_to_stop_at_cuts_off_has_none(ai: openai.OpenAI) -> None:
    tokens = prompt(80, seed=5)
    whole = ask(ai, tokens, logprobs=1).choices[0].logprobs.model_dump()
    said = whole["tokens"]
    at = next(one for one in range(3, NEW - 1) if said[one] not in said[:one])
    (cut,) = ask(ai, tokens, logprobs=1, stop=f"{said[at]} ").choices
    assert cut.finish_reason == "stop" and cut.text == "".join(said[:at])
    wanted = {name: values[:at] for name, values in whole.items()}
    alike(cut.logprobs.model_dump(), wanted)
    alike(streamed(ask(ai, tokens, logprobs=1, stop=f"{said[at]} ", stream=True)), wanted)


def test_each_of_several_answers_has_them(ai: openai.OpenAI) -> None:
    texts = [prompt(40, seed=20 + number) for number in range(2)]
    alone = [ask(ai, one, logprobs=2).choices[0].logprobs for one in texts]
    found = [one.logprobs for one in ask(ai, texts, logprobs=2, n=2).choices]
    for at, one in enumerate(found):
        assert one.tokens == alone[at // 2].tokens
        assert one.token_logprobs == pytest.approx(alone[at // 2].token_logprobs, abs=1e-4)


def test_an_engine_that_is_killed_costs_no_token_its_logprobs_nor_has_one_twice(
    house: House, reference: Reference, words: list[str]
) -> None:
    tokens, new = prompt(60, seed=30), 900
    with house.engine("dies") as dying:
        knows = [f"--engine={one.address}" for one in (dying, house.engines[0])]
        with house.serving("replays", *knows) as gateway, client_of(gateway) as ai:
            stream = ai.completions.create(
                model="tiny",
                prompt=tokens,
                max_tokens=new,
                logprobs=1,
                stream=True,
                extra_body=ON,
            )
            first = [next(stream), next(stream)]
            os.kill(dying.pid, signal.SIGKILL)
            found = streamed([*first, *stream])
            assert counted(gateway.metrics)["retries"] == 1
    answer = reference.tokens(tokens, new)
    assert found["tokens"] == [words[one] for one in answer]
    logits = reference.logits([*tokens, *answer])[len(tokens) - 1 : -1]
    every = logits.log_softmax(-1, dtype=torch.float32)
    own = [float(every[at, one]) for at, one in enumerate(answer)]
    assert found["token_logprobs"] == pytest.approx(own, abs=1e-3)


@pytest.mark.parametrize("top", [-1, 6])
def test_more_than_openai_allows_are_refused_by_the_field(ai: openai.OpenAI, top: int) -> None:
    with pytest.raises(openai.BadRequestError, match="from 0 to 5") as refused:
        ask(ai, "w1", logprobs=top)
    assert refused.value.param == "logprobs"


def test_more_logprobs_than_one_call_may_have_are_refused_before_anybody_is_asked(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "SERVE_LOGPROBS_MAX", 2 * 3 * 10 * (1 + 4))
    served = Served.of(GatewayConfig(model_dir, engines=("127.0.0.1:1",)))
    runner, wanted = Scripted(), {"prompt": ["w1", "w2"], "n": 3, "max_tokens": 10}
    reply = asked(served, runner, logprobs=5, **wanted)
    assert (reply.status, reply.error["param"]) == (400, "logprobs")
    assert "60 tokens and 5 beside each" in reply.error["message"] and not runner.requests
    assert asked(served, runner, logprobs=4, **wanted).status == 200
    assert [one.logprobs for one in runner.requests] == [4, 4]


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Text:
    folder = tmp_path_factory.mktemp("tokenizer")
    bytes_alone().save(str(folder / "tokenizer.json"))
    return Text(folder)


def test_a_token_that_is_part_of_a_character_has_its_bytes(bytewise: Text) -> None:
    *_, first, second, third, fourth = bytewise.tokens("🌊")
    said = [Said(first, Logprobs(-0.5, ((second, -0.25), (first, -0.5))), 0)]
    assert of_chat(bytewise, said)["content"] == [
        {
            "token": "\\xf0",
            "bytes": [0xF0],
            "logprob": -0.5,
            "top_logprobs": [
                {"token": "\\x9f", "bytes": [0x9F], "logprob": -0.25},
                {"token": "\\xf0", "bytes": [0xF0], "logprob": -0.5},
            ],
        }
    ]
    every = [Said(one, Logprobs(-1.0), 0) for one in (first, second, third, fourth)]
    spelled = [byte for one in of_chat(bytewise, every)["content"] for byte in one["bytes"]]
    assert bytes(spelled).decode() == "🌊"


def test_a_token_that_is_none_of_the_likeliest_is_told_of_beside_them(bytewise: Text) -> None:
    a, b = bytewise.tokens("ab")
    said = of_completion(bytewise, [Said(b, Logprobs(-3.0, ((a, -0.1),)), 4)])
    assert said["top_logprobs"] == [{"a": -0.1, "b": -3.0}]
    assert said["text_offset"] == [4]


def test_an_end_token_has_a_name_and_no_bytes(bytewise: Text) -> None:
    (end,) = bytewise.specials
    (one,) = of_chat(bytewise, [Said(end, Logprobs(-1.0), 0)])["content"]
    assert (one["token"], one["bytes"]) == (END, None)
