"""memcheck over the kernels' tests: what it is asked, and what is said where it cannot be.

A script plays it here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tree
from tests.kernels.gpu import sanitize

PLAYED = """#!{python}
import json, os, sys
told = {{"asked": sys.argv[1:], "where": os.getcwd(),
        "alone": os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]}}
open({log!r}, "w").write(json.dumps(told))
sys.exit({code})
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a GPU; its program, once it is written, is in the folder `bin`, which CUDA_HOME has."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return tmp_path


def play(folder: Path, code: int) -> Path:
    """Have the program there, which ends so; where it writes what it was asked."""
    log, made = folder / "told.json", folder / sanitize.PROGRAM
    made.write_text(PLAYED.format(python=sys.executable, log=str(log), code=code))
    made.chmod(0o755)
    return log


@pytest.mark.parametrize("code", [0, 1, 5])
@pytest.mark.parametrize("folder", ["", "bin"], ids=["on the path", "of the toolkit"])
def test_it_runs_over_the_kernels_tests_and_ends_as_they_do(
    machine: Path, folder: str, code: int
) -> None:
    log = play(machine / folder, code)
    assert sanitize.main() == code
    told: dict[str, Any] = json.loads(log.read_text())
    assert told["where"] == str(tree.ROOT) and told["alone"] == "1"
    options, tests = told["asked"][: -len(sanitize.TESTS)], told["asked"][-len(sanitize.TESTS) :]
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    assert pairs["--tool"] == "memcheck" and pairs["--error-exitcode"] == "1"
    assert tests[1:] == ["-m", "pytest", str(Path(__file__).parent.relative_to(tree.ROOT))]


def test_where_the_program_is_missing_it_says_so_and_fails(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sanitize.main() == 1
    said = capsys.readouterr().err
    assert "there is no compute-sanitizer on PATH" in said and "CUDA device" not in said


def test_where_there_is_no_gpu_it_says_so_and_runs_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = play(machine, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sanitize.main() == 1
    said = capsys.readouterr().err
    assert "finds no CUDA device here" in said and "compute-sanitizer on PATH" not in said
    assert not log.exists()
