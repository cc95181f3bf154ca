"""Of images a page's hash has what their pixels became: what else decides their KV is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sglang.srt.managers.mm_utils import hash_feature

from kvstore.engine.connectors.sglang.told import told
from tests.connectors.sglang.published import server


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("plain", "small", "large")]
    for folder in made:
        folder.mkdir()
        if folder.name != "plain":
            (folder / "preprocessor_config.json").write_text(folder.name)
    return made


def named(path: Path | str, multimodal: bool = True, tokenizer: Path | str | None = None) -> str:
    args = {"model_path": str(path), "tokenizer_path": str(tokenizer or path)}
    with server(**args, multimodal=multimodal):
        return told().get("processors", "")


def test_what_becomes_of_images_is_named_where_a_model_is_given_some(folders: list[Path]) -> None:
    plain, small, large = folders
    assert named(plain) == named(small, multimodal=False) == ""
    assert len({named(one) for one in folders}) == 3
    (large / "preprocessor_config.json").write_text("small")
    assert named(large) == named(small)


def test_it_is_named_as_sglang_reads_it_beside_the_tokenizer(folders: list[Path]) -> None:
    plain, small, large = folders
    assert named(plain, tokenizer=small) == named(large, tokenizer=small) == named(small)


def test_of_a_published_model_the_commit_says_it_unless_another_has_the_tokenizer() -> None:
    assert named("org/model") == ""
    assert named("org/model", tokenizer="org/other") != ""


def test_sglang_has_one_hash_for_images_of_other_shapes_and_the_same_bytes() -> None:
    """Which nothing here can tell apart: the guide says so. Where this fails, it need not."""
    tall, wide = torch.zeros(8, 2), torch.zeros(2, 8)
    assert hash_feature(tall) == hash_feature(wide) == hash_feature([torch.zeros(16)])
    assert hash_feature(tall) != hash_feature(torch.ones(8, 2))
