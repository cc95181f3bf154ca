"""`moonpool scrub` and `moonpool purge` on the command line: what they print, and their codes."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from kvstore.cli.main import main
from kvstore.cli.options import size_text
from tests.nodes import SPEC, Caller, NodeProcess, caller, node, prompt

__all__ = ["caller", "node"]


def test_a_scrub_of_sound_blocks_ends_with_0_and_its_figures(
    node: NodeProcess, caller: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    caller.put(prompt(1, 3))
    assert main(["scrub", "--node", node.address]) == 0
    assert "3 blocks, " in capsys.readouterr().out
    assert main(["scrub", "--node", node.address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["blocks"], found["blocks_done"], found["damaged"]) == (3, 3, 0)
    assert found["bytes_done"] > 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_scrub_whose_figures_go_to_a_file_says_on_the_terminal_how_it_goes(
    node: NodeProcess,
    caller: Caller,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller.put(prompt(1, 3))
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    assert main(["scrub", "--node", node.address, "--json"]) == 0
    assert "block" in terminal.getvalue()
    assert json.loads(capsys.readouterr().out)["blocks"] == 3


def test_a_scrub_of_nothing_ends_at_once(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scrub", "--node", node.address]) == 0
    assert "0 blocks, 0 bytes verified" in capsys.readouterr().out


def test_a_rate_that_is_no_size_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrub", "--node", "127.0.0.1:1", "--rate", "fast"]) == 2
    assert "--rate = 'fast'" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["99999999999999TiB", "9" * 5_000, "8388608TiB"])
def test_a_size_that_no_message_holds_is_named_with_its_option(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in ("scrub --node 127.0.0.1:1 --rate", "share default --quota"):
        assert main([*asked.split(), size]) == 2
        said = capsys.readouterr().err
        assert f"{asked.split()[-1]} = {size[:64]!r}: less than 8388608TiB is right" in said


def test_a_purge_says_what_went(
    node: NodeProcess, caller: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    caller.put(prompt(1, 3))
    name = SPEC.digest.hex()[:12]
    assert main(["purge", "--namespace", name, "--yes", "--node", node.address]) == 0
    assert capsys.readouterr().out == f"purged namespace {name}: 3 blocks dropped\n"


def test_a_purge_of_what_is_not_there_says_what_is(
    node: NodeProcess, caller: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["purge", "--namespace", "00", "--yes", "--node", node.address]) == 2
    assert SPEC.digest.hex()[:12] in capsys.readouterr().err


def test_a_purge_says_what_it_would_forget_before_it_asks(
    node: NodeProcess,
    caller: Caller,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller.put(prompt(1, 3))
    name = SPEC.digest.hex()
    asked = (
        f"forget all 3 blocks (about {size_text(3 * 512)}) of namespace {name[:12]} ({SPEC.model})"
    )
    for whose, said in (
        (["--namespace", name[:3]], asked),
        (["--tenant", "default"], r"forget every block of tenant default \(\d.* [KM]iB\)"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        assert main(["purge", *whose, "--node", node.address]) == 1
        told = capsys.readouterr().err
        assert said in told or re.match(said, told), told
        assert told.endswith("for good? [y/N] nothing was purged: answer y, or give --yes\n")
    assert main(["purge", "--namespace", "zz", "--node", node.address]) == 2
    told = capsys.readouterr().err
    assert "names 0 namespaces; there are: " + name[:12] in told and "forget" not in told
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["purge", "--namespace", name[:3], "--node", node.address]) == 0
    assert "3 blocks dropped" in capsys.readouterr().out


@pytest.mark.parametrize("whose", [[], ["--namespace", "ab", "--tenant", "default"]])
def test_a_purge_is_of_one_or_the_other(
    whose: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["purge", "--yes", *whose])
    assert ended.value.code == 2
    assert "--namespace" in capsys.readouterr().err
