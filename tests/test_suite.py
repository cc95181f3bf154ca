"""How the suite itself is run: what a file's fixtures start is started once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("tests/core/test_carried.py", "tests/core/test_pace.py")
FOLDER = "tests/auth"  # which has files of each part


def test_of_files_that_run_side_by_side_each_is_run_by_one_process() -> None:
    asked = [sys.executable, "-m", "pytest", "-n", "2", "-vvv", *FILES]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout
    workers = defaultdict(set)
    for worker, file in re.findall(r"\[(gw\d)\].* PASSED (\S+?)::", ran.stdout):
        workers[file].add(worker)
    assert sorted(workers) == sorted(FILES)
    assert [len(of) for of in workers.values()] == [1, 1]


def test_each_part_of_the_suite_reads_its_own_files_only_and_all_of_them_are_all_of_it() -> None:
    parts = [_collected("-m", mark) for mark in ("together", "waiting", "alone")]
    assert all(parts) and sum(parts, Counter()) == _collected()


def _collected(*options: str) -> Counter[str]:
    """How many tests of each file."""
    asked = [sys.executable, "-m", "pytest", "--collect-only", *options, FOLDER]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "deselected" not in ran.stdout, "read, and left out afterwards"
    return Counter(re.findall(r"(?m)^(\S+\.py)::", ran.stdout))
