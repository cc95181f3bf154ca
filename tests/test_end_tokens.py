"""Which tokens end an answer, by the files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.end_tokens import end_tokens
from kvstore.errors import ConfigError


def folder(path: Path, config: Any, generation: Any = None) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({}, None, set()),
        ({"eos_token_id": 7}, None, {7}),
        ({"eos_token_id": [7, 9]}, {}, {7, 9}),
        ({"eos_token_id": 1}, {"eos_token_id": [1, 107]}, {1, 107}),
        ({"eos_token_id": None}, {"eos_token_id": 5}, {5}),
        ({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}, None, {1, 106}),
        ({"text_config": {"eos_token_id": 3}}, None, {3}),
    ],
)
def test_they_are_those_of_all_files_and_all_parts(
    tmp_path: Path, config: Any, generation: Any, ids: set[int]
) -> None:
    assert end_tokens(folder(tmp_path, config, generation)) == ids


@pytest.mark.parametrize("wrong", ["7", True, [7, "9"], 7.0])
def test_what_is_no_token_is_told_with_its_file(tmp_path: Path, wrong: Any) -> None:
    made = folder(tmp_path, {}, {"eos_token_id": wrong})
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id"):
        end_tokens(made)


@pytest.mark.parametrize("wrong", ["[", "[]"])
def test_a_file_that_is_no_object_is_told_by_its_name(tmp_path: Path, wrong: str) -> None:
    made = folder(tmp_path, {})
    (made / "generation_config.json").write_text(wrong)
    with pytest.raises(ConfigError, match=r"generation_config\.json is no JSON"):
        end_tokens(made)
