"""The page that says how numbers are made tells of every bench, with the goal that it has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from bench.__main__ import BENCHES

PAGE = Path(__file__).resolve().parents[2] / "bench" / "README.md"


# What a bench holds itself to, where that is not its GOAL alone.
NAMED = {
    "recovery": ["LIMIT_S"],
    "follow": ["LIMIT_S"],
    "simulate": ["GOAL_S"],
    "goodput": ["GOAL_RATE"],
    "index": ["GOAL_QUERIES", "GOAL_BYTES"],
    "schedule": ["GOAL_RATE", "GOAL_P99_MS"],
}


def test_every_bench_is_told_of_once_with_its_goal() -> None:
    rows = told()
    assert sorted(name for name, _ in rows) == sorted(BENCHES)
    for name, goal in rows:
        assert set(numbers(goal)) <= set(numbers(BENCHES[name])), name


@pytest.mark.parametrize("name", BENCHES)
def test_a_goal_on_the_page_is_the_one_that_the_bench_holds_itself_to(name: str) -> None:
    bench = importlib.import_module(f"bench.{name}")
    held = [getattr(bench, each) for each in NAMED.get(name, ["GOAL"])]
    assert numbers(dict(told())[name]) == held


def told() -> list[tuple[str, str]]:
    """Names and goals."""
    return re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE.read_text(), re.M)


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(r"\b\d[\d,]*(?:\.\d+)?", text)]
