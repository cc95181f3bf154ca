"""What a gateway asks of engines for a prompt, by what it knows of the model and of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvstore.config import GatewayConfig
from kvstore.errors import ConfigError
from kvstore.gateway.http.asked import TOKENS_UNSAID, Asked, asked
from kvstore.gateway.http.refusal import TooLong
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.text import Text

ENGINES = ("127.0.0.1:1",)


@pytest.mark.parametrize(("told", "room"), [(None, 1024), (100, 100)])
def test_no_more_is_asked_for_than_engines_have_room_for(
    model_dir: Path, told: int | None, room: int
) -> None:
    served = Served.of(GatewayConfig(model_dir, engines=ENGINES, max_model_len=told))
    unsaid = Asked("tiny", ("w5 w6",), max_tokens=None)
    (prompt,) = served.prompts(unsaid)
    assert len(prompt) + served.new_tokens(prompt, unsaid) == room
    with pytest.raises(TooLong, match=f"for {room} in all"):
        served.prompts(Asked("tiny", ("w5 w6",), max_tokens=room))


def test_an_answer_of_no_said_length_has_what_the_gateway_was_told_or_all_there_is(
    model_dir: Path,
) -> None:
    told = GatewayConfig(model_dir, engines=ENGINES, max_model_len=100, answer_tokens=30)
    served, unsaid = Served.of(told), Asked("tiny", ("w5",), max_tokens=None)
    assert [served.new_tokens(range(tokens), unsaid) for tokens in (5, 70, 95)] == [30, 30, 5]
    assert served.new_tokens(range(5), Asked("tiny", ("w5",), max_tokens=60)) == 60


def test_a_completion_of_no_said_length_is_as_long_as_fits_and_no_longer_than_openai_s(
    model_dir: Path,
) -> None:
    served = Served.of(GatewayConfig(model_dir, engines=ENGINES, max_model_len=20))

    def new_tokens(prompt: list[int]) -> int:
        wanted = asked(json.dumps({"model": "tiny", "prompt": prompt}).encode(), ["tiny"])
        (tokens,) = served.prompts(wanted)
        return served.new_tokens(tokens, wanted)

    assert [new_tokens([5] * tokens) for tokens in (4, 5, 19)] == [TOKENS_UNSAID, 15, 1]
    with pytest.raises(TooLong, match=r"^20 tokens of prompt: the model has") as refused:
        new_tokens([5] * 20)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_does_not_fit_is_refused_by_the_field_that_says_its_length(
    model_dir: Path, limit: str
) -> None:
    served = Served.of(GatewayConfig(model_dir, engines=ENGINES, max_model_len=20))
    with pytest.raises(TooLong, match=f"and {limit} = 19") as refused:
        served.prompts(Asked("tiny", ((5, 6),), max_tokens=19, limit=limit))
    assert refused.value.param == limit


def without(model: Path, folder: Path, *names: str) -> Path:
    """The model, of whose sizes these are left out."""
    shutil.copytree(model, folder)
    config = json.loads((model / "config.json").read_text())
    left = {name: value for name, value in config.items() if name not in names}
    (folder / "config.json").write_text(json.dumps(left))
    return folder


def test_what_a_config_leaves_to_defaults_is_the_tokenizers_or_must_be_said(
    model_dir: Path, tmp_path: Path
) -> None:
    folder = without(model_dir, tmp_path / "m", "vocab_size", "max_position_embeddings")
    with pytest.raises(ConfigError, match=r"how many positions .* --max-model-len"):
        Served.of(GatewayConfig(folder, engines=ENGINES, revision="r"))
    served = Served.of(GatewayConfig(folder, engines=ENGINES, revision="r", max_model_len=64))
    assert (served.positions, served.vocabulary) == (64, served.text.vocabulary)
    assert served.prompts(Asked("tiny", ("w5 w6",), max_tokens=1))


def test_gpt2_says_its_positions_by_another_name(model_dir: Path, tmp_path: Path) -> None:
    folder = without(model_dir, tmp_path / "m", "max_position_embeddings")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_positions": 96}))
    assert Served.of(GatewayConfig(folder, engines=ENGINES, revision="r")).positions == 96


@pytest.mark.parametrize("told", [0, -1])
def test_room_for_nothing_is_refused(told: int) -> None:
    with pytest.raises(ConfigError, match=f"--max-model-len = {told}: write 1 or more"):
        GatewayConfig(Path("m"), engines=ENGINES, max_model_len=told)
    with pytest.raises(ConfigError, match=f"--answer-tokens = {told}: write 1 or more"):
        GatewayConfig(Path("m"), engines=ENGINES, answer_tokens=told)


def test_the_tokens_that_the_model_ends_with_are_no_text(model_dir: Path, tmp_path: Path) -> None:
    folder = without(model_dir, tmp_path / "m")
    word, other = Text(folder).tokens("w5 w6")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [word]}))
    text = Served.of(GatewayConfig(folder, engines=ENGINES, revision="r")).text
    assert word in text.specials and other not in text.specials
