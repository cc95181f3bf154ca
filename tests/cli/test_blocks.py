"""`moonpool get` and its kin on the command line: what a miss and a wrong address come to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.cli.blocks import tokens_of
from kvstore.cli.main import main
from kvstore.errors import Invalid
from tests.nodes import SPEC, NodeProcess, node

__all__ = ["node"]


def test_a_miss_leaves_the_file_as_it_was(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, kept, none = tmp_path / "spec.json", tmp_path / "kept.bin", tmp_path / "none.bin"
    spec.write_text(SPEC.canonical())
    kept.write_bytes(b"of an earlier get")
    for file in (kept, none):
        asked = ["get", str(file), "--spec", str(spec), "--tokens", "1,2,3"]
        assert main([*asked, "--node", node.address]) == 3
    assert "the next is absent" in capsys.readouterr().out
    assert kept.read_bytes() == b"of an earlier get" and not none.exists()


@pytest.mark.parametrize(
    ("file", "why"),
    [("/", "is a directory"), ("/dev/null", "is no regular file"), ("none", "No such file")],
)
def test_what_is_put_is_a_file_of_known_size(
    node: NodeProcess, file: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(SPEC.canonical())
    asked = ["put", file, "--spec", str(spec), "--tokens", "1,2,3", "--node", node.address]
    assert main(asked) == (1 if file == "none" else 2)
    assert f"moonpool: {file}: {why}" in capsys.readouterr().err


def test_a_file_that_is_cut_off_while_it_is_put_is_what_is_named(
    node: NodeProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, file = tmp_path / "spec.json", tmp_path / "kv.bin"
    spec.write_text(SPEC.canonical())
    file.write_bytes(bytes(1_024))  # two blocks

    def cut_off(_: int) -> bool:
        os.truncate(file, 600)
        return True

    monkeypatch.setattr("kvstore.cli.blocks.stat.S_ISREG", cut_off)
    asked = ["put", str(file), "--spec", str(spec), "--tokens", "1,2,3,4,5,6,7,8"]
    assert main([*asked, "--node", node.address]) == 2
    assert capsys.readouterr().err == (
        f"moonpool: {file} was cut off meanwhile: 424 bytes are gone\n"
    )


def test_tokens_are_read_from_a_file_whose_name_begins_with_a_digit(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        Path("2-turns.json").write_text("[7, 8]")
        assert tokens_of("2-turns.json") == [7, 8]
    assert tokens_of("7, 8") == [7, 8]


@pytest.mark.parametrize("given", ["", "1,a", "-1", "none.json"])
def test_what_is_neither_ids_nor_a_file_of_them_is_named(given: str) -> None:
    with pytest.raises(Invalid, match=f"--tokens '{given}' is neither ids like 1,2,3 nor a file"):
        tokens_of(given)


@pytest.mark.parametrize("text", [b"\x80", b"{", b"[]"])
def test_a_file_that_holds_no_spec_is_named(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_bytes(text)
    assert main(["match", "--spec", str(spec), "--tokens", "1"]) == 2
    assert f"--spec {spec}, which `moonpool spec` would make: " in capsys.readouterr().err
