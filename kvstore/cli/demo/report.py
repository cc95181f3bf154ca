"""What the demo found, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from kvstore.cli.demo.workload import Ask
from kvstore.engine.control import Sample
from kvstore.gateway.request import Outcome
from kvstore.limits import MiB

BLOCKS_CHANGED_MIN = 0.8  # share of hits in which a swapped block must change the tokens
STRIP_RATIO_MIN = 100.0  # how much further a swapped strip must move the logits


@dataclass(slots=True)
class Row:
    """One request, both ways."""

    ask: Ask
    pool: Outcome
    none: Outcome
    expected: list[int]

    @property
    def identical(self) -> bool:
        return self.pool.tokens == self.expected and self.none.tokens == self.expected

    def line(self) -> str:
        p, none = self.pool, 1e3 * self.none.ttft_seconds
        return (
            f"{self.ask.id:<14}{len(self.ask.prompt):>7}{p.pool_tokens:>7}{p.hand_off_tokens:>9}"
            f"{p.computed_tokens:>9}{1e3 * p.ttft_seconds:>9.0f}{none:>9.0f}"
            f"   {'yes' if self.identical else 'NO'}"
        )


HEADER = (
    f"{'request':<14}{'prompt':>7}{'pool':>7}{'handoff':>9}{'computed':>9}"
    f"{'TTFT ms':>9}{'without':>9}   identical"
)


@dataclass(slots=True)
class Report:
    """The whole run."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def identical(self) -> int:
        return sum(row.identical for row in self.rows)

    @property
    def blocks_changed(self) -> float:
        return sum(s.block_changed_tokens for s in self.samples) / max(1, len(self.samples))

    @property
    def strip_ratio(self) -> float:
        return median(s.strip_ratio for s in self.samples) if self.samples else 0.0

    @property
    def good(self) -> bool:
        """Whether the demo showed what it promises."""
        control = self.blocks_changed >= BLOCKS_CHANGED_MIN and self.strip_ratio >= STRIP_RATIO_MIN
        return self.identical == len(self.rows) and control

    def ttft_ratio(self, quantile: float) -> float:
        pool = np.quantile([row.pool.ttft_seconds for row in self.rows], quantile)
        none = np.quantile([row.none.ttft_seconds for row in self.rows], quantile)
        return float(pool / none)

    def as_dict(self) -> dict[str, Any]:
        ratios = [s.strip_ratio for s in self.samples]
        return {
            "requests": len(self.rows),
            "identical": self.identical,
            "control": {
                "hits": len(self.samples),
                "block_changed_tokens": self.blocks_changed,
                "strip_ratio_median": self.strip_ratio,
                "strip_ratio_min": min(ratios, default=0.0),
                "strips_moved_enough": sum(r >= STRIP_RATIO_MIN for r in ratios)
                / max(1, len(ratios)),
                "clean_difference_max": max(
                    (s.clean_difference for s in self.samples), default=0.0
                ),
            },
            "hit_tokens": sum(row.pool.pool_tokens for row in self.rows),
            "hand_off_tokens": sum(row.pool.hand_off_tokens for row in self.rows),
            "query_tokens": sum(len(row.ask.prompt) for row in self.rows),
            "loaded_bytes": sum(row.pool.loaded_bytes for row in self.rows),
            "ttft_pool_ms": [round(1e3 * row.pool.ttft_seconds, 3) for row in self.rows],
            "ttft_none_ms": [round(1e3 * row.none.ttft_seconds, 3) for row in self.rows],
            "rows": [
                {
                    "id": row.ask.id,
                    "kind": row.ask.kind,
                    "prompt_tokens": len(row.ask.prompt),
                    "pool_tokens": row.pool.pool_tokens,
                    "hand_off_tokens": row.pool.hand_off_tokens,
                    "computed_tokens": row.pool.computed_tokens,
                    "identical": row.identical,
                    "miss": row.pool.miss,
                }
                for row in self.rows
            ],
            "node_counters": self.counters,
        }

    def summary(self) -> str:
        facts = self.as_dict()
        asked, hit, control = facts["query_tokens"], facts["hit_tokens"], facts["control"]
        handed = facts["hand_off_tokens"]
        published = self.counters.get("sealed_bytes", 0)
        return "\n".join(
            [
                f"tokens      {asked} asked for; {hit} ({hit / asked:.1%}) came from the pool, "
                f"{handed} ({handed / asked:.1%}) from a prefill that was followed",
                f"TTFT        {self.ttft_ratio(0.5):.2f} x without the pool at p50, "
                f"{self.ttft_ratio(0.99):.2f} x at p99",
                f"moved       {facts['loaded_bytes'] / MiB:.0f} MiB loaded and verified, "
                f"{published / MiB:.0f} MiB published",
                f"identical   {self.identical}/{len(self.rows)} to transformers generating alone",
                f"control     {control['block_changed_tokens']:.0%} of {control['hits']} hits gave "
                "other tokens with one block swapped",
                f"            one strip swapped moved the logits {self.strip_ratio:.0f} x further "
                f"than a clean fetch (median; in {control['strips_moved_enough']:.0%} of hits "
                f"{STRIP_RATIO_MIN:.0f} x or more)",
            ]
        )
