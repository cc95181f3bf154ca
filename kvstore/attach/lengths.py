"""How long prompts were, from a file: what no event and no counter tells.

A trace is of any format that `moonpool plan` reads; a log of requests has a JSON object a line with
`prompt_tokens`, and may have anything else, which is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvstore.planner import trace
from kvstore.planner.lines import lines, record


def of_trace(path: Path) -> list[int]:
    """Raises Invalid, which names the line and what would be right."""
    return [int(one) for one in trace.read(path).input_tokens]


def of_log(path: Path) -> list[int]:
    """Raises Invalid, which names the line and what would be right."""
    return [record(line).count("prompt_tokens", 1) for line in lines(path)]


def fitting(lengths: Sequence[int], queries: int) -> bool:
    """Whether these are the prompts that were asked for, and no others."""
    return sum(lengths) == queries
