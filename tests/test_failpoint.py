"""A process dies where it was told to, the time it was told, and nowhere else."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections import Counter

import pytest

from kvstore import failpoint
from kvstore.errors import ConfigError
from tests import tree

PASSES = """
import os
from kvstore import failpoint
failpoint.arm(os.environ)
for number in range(5):
    failpoint.failpoint("seal.before_index")
    failpoint.failpoint("seal.after_index")
    failpoint.failpoint("evict.after_drop", 2)
    print(number, flush=True)
"""


def passed(setting: str) -> tuple[int, int]:
    """How often a process came by, and how it ended."""
    ran = subprocess.run(
        [sys.executable, "-c", PASSES],
        cwd=tree.ROOT,
        env={failpoint.VARIABLE: setting, "PYTHONPATH": str(tree.ROOT)},
        capture_output=True,
        text=True,
    )
    return len(ran.stdout.splitlines()), ran.returncode


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", (5, 0)),
        ("seal.after_index:exit", (0, -signal.SIGKILL)),
        ("seal.after_index:exit@3", (2, -signal.SIGKILL)),
        ("seal.after_index:exit@6", (5, 0)),
        ("evict.after_drop:exit@7", (3, -signal.SIGKILL)),
        ("evict.after_drop:exit@11", (5, 0)),
        ("remove.before_flush:exit", (5, 0)),
    ],
)
def test_a_process_dies_where_and_when_it_was_told(setting: str, expected: tuple[int, int]) -> None:
    assert passed(setting) == expected


@pytest.mark.parametrize("wrong", ["seal", "seal.after_index:exit@0", "seal.after_index:raise@1"])
def test_a_setting_of_another_form_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"MOONPOOL_FAIL = .*write NAME:exit@COUNT, as in"):
        failpoint.arm({failpoint.VARIABLE: wrong})


def test_a_place_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"names 'seal\.never'.*write_back\.before_sync"):
        failpoint.arm({failpoint.VARIABLE: "seal.never:exit"})


def test_a_node_says_so_before_it_serves() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "kvstore", "node"],
        cwd=tree.ROOT,
        env={failpoint.VARIABLE: "seal.never:exit", "PYTHONPATH": str(tree.ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2 and "MOONPOOL_FAIL names 'seal.never'" in ran.stderr


def test_every_place_is_in_the_source_once_and_every_one_there_is_declared() -> None:
    found: Counter[str] = Counter()
    for module in tree.modules(tree.ROOT):
        if module.name.startswith("tests"):
            continue
        for node in ast.walk(ast.parse((tree.ROOT / module.path).read_text())):
            match node:
                case ast.Call(func=ast.Name("failpoint"), args=[ast.Constant(str(name)), *_]):
                    found[name] += 1
                case ast.Call(func=ast.Name("failpoint")):
                    raise AssertionError(f"{module.path}:{node.lineno}: a place without a name")
    assert found == Counter(failpoint.POINTS.keys())
