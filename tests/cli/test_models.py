"""`moonpool make-model` as it is typed: a model that is there is never written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli.main import main
from kvstore.cli.models import default_model
from kvstore.engine import make_model


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_the_same_model_can_be_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    for _ in range(2):
        assert main(["make-model", str(folder), "--seed", "7"]) == 0
        assert capsys.readouterr().out.strip() == str(folder)


def test_what_a_model_is_to_chat_by_may_be_another_than_was_written(tmp_path: Path) -> None:
    assert main(["make-model", str(tmp_path)]) == 0
    (tmp_path / "chat_template.jinja").write_text("mine")
    assert main(["make-model", str(tmp_path)]) == 0
    assert (tmp_path / "chat_template.jinja").read_text() == "mine"


def test_a_model_that_was_made_before_it_chatted_chats_once_it_is_asked_for_again(
    tmp_path: Path,
) -> None:
    whole = bytes_of(make_model.make_model(tmp_path / "whole"))
    for name in ("named", "random-model"):
        make_model.make_model(tmp_path / name)
        (tmp_path / name / "chat_template.jinja").unlink()
    assert main(["make-model", str(tmp_path / "named")]) == 0
    assert bytes_of(tmp_path / "named") == whole == bytes_of(default_model(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "a.safetensors", "a.bin", "tokenizer.json"])
def test_another_model_is_not_written_over(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"precious")
    before = bytes_of(tmp_path)
    assert main(["make-model", str(tmp_path)]) == 2
    assert "has another model: name another folder" in capsys.readouterr().err
    assert bytes_of(tmp_path) == before


def test_a_random_model_that_was_not_made_to_its_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for fails in ("_write_json", "_write_tokenizer"):
        with monkeypatch.context() as patched, pytest.raises(OSError):
            patched.setattr(make_model, fails, full)
            default_model(tmp_path)
    made = bytes_of(default_model(tmp_path))
    assert made == bytes_of(make_model.make_model(tmp_path / "whole"))
    monkeypatch.setattr(make_model, "make_model", full)
    assert bytes_of(default_model(tmp_path)) == made, "and once"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["random-model", "whole"]


@pytest.mark.parametrize("command", ["up", "engine", "serve", "spec"])
def test_a_models_name_at_the_hub_is_told_from_a_folder_that_has_no_model(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--model", "meta-llama/Llama-3.1-8B"]) == 2
    assert capsys.readouterr().err.strip() == (
        "moonpool: --model meta-llama/Llama-3.1-8B: there is no such folder, and nothing is "
        "downloaded: `hf download meta-llama/Llama-3.1-8B --local-dir ./Llama-3.1-8B`, "
        "then --model ./Llama-3.1-8B"
    )
    assert main([command, "--model", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("there is no such folder, and nothing is downloaded\n")
