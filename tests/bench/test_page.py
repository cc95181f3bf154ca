"""The page that says how numbers are made tells of every bench, with the goal that it has."""

from __future__ import annotations

import re
from pathlib import Path

from bench.__main__ import BENCHES

PAGE = Path(__file__).resolve().parents[2] / "bench" / "README.md"


def test_every_bench_is_told_of_once_with_its_goal() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE.read_text(), re.M)
    assert sorted(name for name, _ in rows) == sorted(BENCHES)
    for name, goal in rows:
        assert set(numbers(goal)) <= set(numbers(BENCHES[name])), name


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
