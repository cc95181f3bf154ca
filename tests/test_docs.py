"""The docs are run: every bash and python block of the guide, and what the README points at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.cli.stack import Plan, Stack

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "deploy" / "guide"


def blocks(page: Path, language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S))


def shell(script: str, directory: Path, home: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, "MOONPOOL_DIR": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
    )


@contextmanager
def node() -> Iterator[Path]:
    """A directory in which a node serves."""
    with (
        tempfile.TemporaryDirectory(prefix="mp") as home,
        Stack(Plan(Path(home), "64MiB", "4MiB", None), restart=False) as stack,
    ):
        stack.start()
        yield Path(home)


def test_the_commands_of_the_run_page_run(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(blocks(GUIDE / "run.md", "bash"), tmp_path, Path(home))
    assert ran.returncode == 0, ran.stderr


def test_the_commands_of_the_any_language_page_run(tmp_path: Path) -> None:
    with node() as home:
        ran = shell(blocks(GUIDE / "any-language.md", "bash"), tmp_path, home)
    assert ran.returncode == 0, ran.stderr
    assert "3 of 3 blocks, 150 of 150 tokens" in ran.stdout
    assert "0 of 3 blocks, 0 of 150 tokens; the next is removed" in ran.stdout


def test_the_python_page_runs(tmp_path: Path) -> None:
    with node() as home:
        begin = f"from pathlib import Path\ndirectory = Path({str(home)!r})\n"
        page = tmp_path / "page.py"
        page.write_text(begin + blocks(GUIDE / "python.md", "python"))
        ran = subprocess.run(
            [sys.executable, str(page)], capture_output=True, text=True, timeout=100
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "0 0 absent\n"


def test_every_link_and_path_of_the_readme_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:kvstore|deploy|proto|bench|engine|kernels)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "up",
        "node",
        "engine",
        "put",
        "get",
        "match",
        "rm",
        "stat",
        "ls",
        "drain",
        "share",
        "make-model",
        "spec",
    ],
)
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "kvstore", name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0
    assert "example:" in ran.stdout and f"moonpool {name}" in ran.stdout
