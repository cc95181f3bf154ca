"""What a body may say: all that is served, and of the rest which field is wrong and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstore.errors import Invalid
from kvstore.gateway.http.asked import TOKENS_UNSAID, Asked, asked
from kvstore.gateway.http.refusal import BadField, UnknownModel
from kvstore.gateway.sampling import Sampling
from kvstore.limits import SERVE_PROMPTS_MAX


def read(**fields: Any) -> Asked:
    return asked(json.dumps({"model": "m", "prompt": "p", **fields}).encode(), ["m"])


def test_a_prompt_alone_is_enough() -> None:
    assert read() == Asked("m", ("p",), tokens_unsaid=TOKENS_UNSAID)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_are_texts_or_tokens(prompt: Any, prompts: Any) -> None:
    assert read(prompt=prompt).prompts == prompts


def test_what_makes_no_difference_is_let_pass() -> None:
    plain = {"n": 1, "temperature": 0.0, "echo": False, "stop": [], "logprobs": None}
    assert read(**plain, top_p=0.5, seed=3, user="u", suffix="", logit_bias={}) == read()


def test_tokens_may_be_drawn() -> None:
    assert read(temperature=0.5).sampling == Sampling(0.5)
    every = {"top_p": 0.9, "seed": 7, "presence_penalty": -1.0, "frequency_penalty": 0.5}
    assert read(temperature=1, **every).sampling == Sampling(1.0, **every)
    assert read(presence_penalty=1).sampling == Sampling(0.0, presence_penalty=1.0)
    assert read().sampling is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("top_p", value) for value in (0, 1.1, True, "1")],
        *[("seed", value) for value in (1.5, 2**63, True)],
        ("n", 2),
    ],
)
def test_what_tokens_cannot_be_drawn_by_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(BadField) as refused:
        read(temperature=1, **{field: value})
    assert refused.value.param == field


def test_logprobs_may_be_of_the_tokens_alone_or_of_five_beside_each() -> None:
    assert [read(logprobs=top).logprobs for top in (None, 0, 5)] == [None, 0, 5]


def test_answers_may_be_several() -> None:
    assert (read().choices, read(n=None).choices, read(n=3).choices) == (1, 1, 3)


def test_texts_to_stop_at_are_one_or_some() -> None:
    assert read(stop="x").stops == ("x",) and read(stop=["a", "b"]).stops == ("a", "b")
    assert read(stop=None).stops == read(stop=[]).stops == ()


def test_a_stream_may_end_with_what_it_took() -> None:
    wanted = read(stream=True, stream_options={"include_usage": True}, ignore_eos=True)
    assert wanted.stream and wanted.include_usage and wanted.ignore_eos
    assert not read(stream=True).include_usage


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("prompt", value) for value in (None, "", [], [[]], [1, "a"], ["a", 1], [True], [1.5])],
        *[("prompt", value) for value in ({}, 7, "\ud800", ["a", ""], ["a"] * 17)],
        *[("max_tokens", value) for value in (0, -1, 1.5, True, "9")],
        *[("temperature", value) for value in (2.1, -0.1, False, "0", float("nan"))],
        *[
            ("n", 0),
            ("n", 17),
            ("n", True),
            ("n", "2"),
            ("best_of", 3),
            ("echo", True),
            ("echo", 0),
        ],
        *[("stop", value) for value in ("", 5, [5], ["a"] * 5, "a" * 257, "\ud800")],
        *[("logprobs", value) for value in (-1, 6, 1.5, True, "2")],
        *[("suffix", "s"), ("logit_bias", {"5": 1})],
        *[("presence_penalty", 3), ("frequency_penalty", -2.5), ("stream", 1), ("ignore_eos", 0)],
        *[("stream_options", {}), ("tools", []), ("model", 5)],
    ],
)
def test_what_is_not_served_is_refused_by_its_name(field: str, value: Any) -> None:
    assert SERVE_PROMPTS_MAX < 17
    with pytest.raises(BadField) as refused:
        read(**{field: value})
    assert refused.value.param == field and field in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("options", [{"include_usage": 1}, {"other": True}, True])
def test_options_of_a_stream_are_known_ones(options: Any) -> None:
    with pytest.raises(BadField):
        read(stream=True, stream_options=options)


def test_another_model_is_not_served() -> None:
    with pytest.raises(UnknownModel, match="'x' is not served here: 'm' is"):
        read(model="x")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"9" * 5_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="no JSON"):
        asked(body, ["m"])
