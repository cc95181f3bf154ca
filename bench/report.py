"""What a bench found: rows, each a figure beside the figure it is held against, and the verdict.

Only rows that were declared as counted before the run decide, and the worst of them is the bench's
ratio: a good row cannot make up for a bad one. Rows that are not counted are there to be read. A
row with a goal of its own counts by how far it is from that: the report's ratio is the worst one,
brought to the scale of the report's goal.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

from bench.rounds import Spread

DIGITS = 5  # significant, of every figure in the JSON


class Goal(enum.StrEnum):
    """On which side of the goal a ratio is good."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. `value` and `limit` are medians in the report's unit."""

    name: str
    sizes: Mapping[str, Any]
    runs: int
    value: float
    limit: float | None = None  # what the value is held against; None: nothing, it is just told
    ratio: float | None = None
    spread: Spread | None = None  # of the ratio within each round
    counted: bool = True
    _: KW_ONLY
    goal: float | None = None  # None: the report's
    also: Mapping[str, Any] = field(default_factory=dict)  # further figures, for the reader

    def __post_init__(self) -> None:
        if self.counted and self.ratio is None:
            raise ValueError(f"row {self.name!r} counts, so it needs a ratio")


@dataclass(frozen=True, slots=True)
class Report:
    """One bench's rows and what they are to reach."""

    name: str
    unit: str
    against: str
    ratio_is: str  # in words, how `ratio` follows from `value` and `limit`
    goal: float
    sense: Goal
    rows: tuple[Row, ...]

    @property
    def ratio(self) -> float:
        """The worst counted row's, as it would be if its goal were the report's."""
        ratios = [
            row.ratio * (self.goal / (row.goal or self.goal))
            for row in self.rows
            if row.counted and row.ratio is not None
        ]
        if not ratios:
            raise ValueError(f"{self.name}: no row counts")
        return min(ratios) if self.sense is Goal.AT_LEAST else max(ratios)

    @property
    def holds(self) -> bool:
        at_least = self.sense is Goal.AT_LEAST
        return self.ratio >= self.goal if at_least else self.ratio <= self.goal

    def as_dict(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """Plain JSON values, rounded to what was measured."""
        plain = {
            "name": self.name,
            "unit": self.unit,
            "against": self.against,
            "ratio_is": self.ratio_is,
            "rows": [asdict(row) for row in self.rows],
            "ratio": self.ratio,
            "goal": self.goal,
            "sense": str(self.sense),
            "holds": self.holds,
            "machine": dict(machine),
        }
        rounded: dict[str, Any] = _rounded(plain)
        return rounded

    def line(self, machine: Mapping[str, Any]) -> str:
        return json.dumps(self.as_dict(machine))

    def table(self) -> str:
        """For people. A row that does not count stands in brackets."""
        width = max(len(row.name) for row in self.rows) + 2
        head = f"{'':<{width}} {'value ' + self.unit:>14} {'against':>10} {'ratio':>8}"
        lines = [f"{self.name}: against {self.against}", f"{head}  quartiles of the rounds"]
        for row in self.rows:
            name = row.name if row.counted else f"({row.name})"
            limit = "" if row.limit is None else f"{row.limit:.3f}"
            ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
            spread = "" if row.spread is None else f"{row.spread.q1:.3f} .. {row.spread.q3:.3f}"
            own = "" if row.goal is None or not row.counted else f"  goal {row.goal}"
            figures = f"{row.value:>14.3f} {limit:>10} {ratio:>8}"
            lines.append(f"{name:<{width}} {figures}  {spread}{own}".rstrip())
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        lines.append(f"{self.ratio_is}: {self.ratio:.3f}, goal {self.sense} {self.goal}: {verdict}")
        return "\n".join(lines)


def _rounded(value: Any) -> Any:
    match value:
        case bool():
            return value
        case float():
            return float(f"{value:.{DIGITS}g}")
        case Mapping():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value
