"""A file that a command cannot write is named, and nothing half written is left."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.cli import output
from kvstore.cli.main import main
from tests.nodes import SPEC, Caller, NodeProcess, caller, node, prompt

__all__ = ["caller", "node"]

Printed = pytest.CaptureFixture[str]


@contextmanager
def no_file_larger(size: int) -> Iterator[None]:
    """As on a disk that is full: a write beyond it fails, and the system names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "dont_write_bytecode", True)  # which would be cut off unnoticed
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def getting(node: NodeProcess, caller: Caller, tmp_path: Path) -> Callable[[Path], list[str]]:
    """The command that fetches three blocks, of 1,536 bytes together, into a file."""
    caller.put(prompt(1, 3))
    (spec := tmp_path / "spec.json").write_text(SPEC.canonical())
    tokens = ",".join(map(str, [1, *range(11)]))
    options = ["--spec", str(spec), "--tokens", tokens, "--node", node.address]
    return lambda file: ["get", str(file), *options]


def test_what_is_fetched_is_there_whole_or_the_file_is_as_it_was(
    getting: Callable[[Path], list[str]], tmp_path: Path, capsys: Printed
) -> None:
    kept, none = tmp_path / "kept.bin", tmp_path / "none.bin"
    kept.write_bytes(b"of an earlier get")
    kept.chmod(0o600)
    for file in (kept, none):
        with no_file_larger(1_000):
            assert main(getting(file)) == 1
        assert capsys.readouterr().err == f"moonpool: {file}: File too large\n"
    assert kept.read_bytes() == b"of an earlier get" and not none.exists()
    assert main(getting(kept)) == 0 and kept.stat().st_size == 1_536
    assert kept.stat().st_mode & 0o777 == 0o600
    assert {one.name for one in tmp_path.iterdir()} == {"kept.bin", "spec.json"}


def test_what_is_fetched_into_something_that_is_no_file_goes_there(
    getting: Callable[[Path], list[str]], capsys: Printed
) -> None:
    assert main(getting(Path("/dev/null"))) == 0
    assert main(getting(Path("/dev/full"))) == 1
    assert capsys.readouterr().err == "moonpool: /dev/full: No space left on device\n"


def test_a_file_that_is_one_s_own_in_a_folder_that_is_not_is_written_where_it_is(
    getting: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "kv").write_bytes(b"of an earlier get")
    was = file.stat().st_ino
    monkeypatch.setattr(output.os, "access", lambda path, mode: Path(path) != tmp_path)
    assert main(getting(file)) == 0
    assert (file.stat().st_size, file.stat().st_ino) == (1_536, was)


def test_a_file_in_no_folder_and_one_that_is_a_folder_are_named(
    getting: Callable[[Path], list[str]], tmp_path: Path, capsys: Printed
) -> None:
    for file, why in ((tmp_path / "no" / "kv", "No such file or directory"), (tmp_path, "Is a")):
        assert main(getting(file)) == 1
        assert f"moonpool: {file}: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "fails"), [(100, "ca.key"), (300, "ca.pem")])
def test_of_an_authority_that_finds_no_room_nothing_is_left(
    size: int, fails: str, tmp_path: Path, capsys: Printed
) -> None:
    with no_file_larger(size):
        assert main(["certs", str(tmp_path)]) == 1
    assert f"moonpool: {tmp_path / fails}: File too large" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["certs", str(tmp_path)]) == 0


def test_a_model_that_finds_no_room_is_named(tmp_path: Path, capsys: Printed) -> None:
    with no_file_larger(10_000):
        assert main(["make-model", str(tmp_path)]) == 1
    assert f"moonpool: {tmp_path}: File too large" in capsys.readouterr().err
