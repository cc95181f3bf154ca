"""Models are meant by a name, or by what is published beside their weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.core.model_shape import LLAMA3_8B
from kvstore.errors import ConfigError
from kvstore.planner import presets
from tests.core.test_published import LLAMA


def test_a_name_is_known_however_it_is_typed() -> None:
    assert presets.model("--model", "Llama-3-8B") is LLAMA3_8B


@pytest.mark.parametrize("file", ["", "config.json"])
def test_a_folder_or_its_file_says_which_model_it_is(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert presets.model("--model", str(folder / file)) == replace(LLAMA3_8B, name="mine")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "num_attention_heads is None, where a whole number is wanted"),
        ("\udcff", "is no JSON"),
    ],
)
def test_a_file_that_says_of_no_model_is_refused_by_what_is_wrong(
    tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=rf"^--model \S*config\.json: .*{told}"):
        presets.model("--model", str(tmp_path))


def test_what_is_neither_is_refused_and_told_what_would_do(tmp_path: Path) -> None:
    for name in ("no-such-model", str(tmp_path)):
        with pytest.raises(
            ConfigError, match=r"is one of llama-3-8b, .* or a folder with a model's"
        ):
            presets.model("--model", name)
