"""What is compiled is kept where a folder can be written, and else compiled at each start; and it
is kept for as long as all that it was made of is what it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT
from tests.unprivileged import unprivileged

__all__ = ["unprivileged"]

LOOP = """
from numba import njit
from kernels.inner import KEPT
from kernels.part import more

@njit(cache=KEPT)
def next_to(number):
    return number + more()
"""
PART = """
from kernels.inner import inner

@inner
def more():
    return {}
"""
READ = "from kernels.loop import next_to; print(next_to(1))"


@pytest.fixture
def installed(tmp_path: Path, unprivileged: None) -> Path:
    """A package that its user may only read, with a small loop beside what every loop has."""
    kernels = tmp_path / "installed" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("__init__.py", "inner.py"):
        shutil.copy(ROOT / "kernels" / name, kernels)
    (kernels / "loop.py").write_text(LOOP)
    (kernels / "part.py").write_text(PART.format(1))
    kernels.chmod(0o555)
    return kernels.parent


def ran(installed: Path, kept: Path) -> str:
    told = {"PYTHONPATH": os.fspath(installed), "NUMBA_CACHE_DIR": os.fspath(kept)}
    told |= {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", READ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=installed, env=told
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_where_no_folder_can_be_written_it_is_compiled_all_the_same(installed: Path) -> None:
    kept = installed / "kept"
    kept.mkdir(mode=0o555)
    assert ran(installed, kept) == "2"
    assert not list(kept.iterdir())


def test_where_one_can_it_is_kept_there(installed: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert ran(installed, kept) == "2"
    assert list(kept.glob("*/loop.next_to-*.nbi"))


def test_what_was_made_of_other_sources_is_not_taken_for_what_it_is_now(
    installed: Path, tmp_path: Path
) -> None:
    """An installation that was upgraded keeps its folders; times of files say nothing of it."""
    kept, part = tmp_path / "kept", installed / "kernels" / "part.py"
    assert ran(installed, kept) == "2"
    (made,) = kept.glob("*/loop.next_to-*.nbc")
    at = made.stat().st_mtime_ns
    assert ran(installed, kept) == "2"
    assert made.stat().st_mtime_ns == at, "it was compiled anew"
    part.chmod(0o666)
    part.write_text(PART.format(7))
    os.utime(part, (1, 1))
    assert ran(installed, kept) == "8"


def test_no_loop_is_kept_without_asking_whether_it_can() -> None:
    asked = [one for one in (ROOT / "kernels").glob("*.py") if "cache=KEPT" in one.read_text()]
    assert len(asked) > 10
    [only] = [
        one.name for one in (ROOT / "kernels").rglob("*.py") if "cache=True" in one.read_text()
    ]
    assert only == "inner.py"
