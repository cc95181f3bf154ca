"""`moonpool make-model` as it is typed: a model that is there is never written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli.main import main


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_the_same_model_can_be_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    for _ in range(2):
        assert main(["make-model", str(folder), "--seed", "7"]) == 0
        assert capsys.readouterr().out.strip() == str(folder)


@pytest.mark.parametrize("name", ["config.json", "a.safetensors", "a.bin", "tokenizer.json"])
def test_another_model_is_not_written_over(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"precious")
    before = bytes_of(tmp_path)
    assert main(["make-model", str(tmp_path)]) == 2
    assert "has another model: name another folder" in capsys.readouterr().err
    assert bytes_of(tmp_path) == before
