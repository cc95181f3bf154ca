"""Loads that are made up, by name: plausible services to plan for where there is no trace yet."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.planner.arrivals import Arrivals
from kvstore.planner.load import Load
from kvstore.planner.synthetic import Bimodal, PrefixTree
from kvstore.planner.synthetic_turns import Agentic, MultiTurn

_Made = Bimodal | PrefixTree | MultiTurn | Agentic
KINDS: dict[str, Callable[[Arrivals], _Made]] = {
    "bimodal": lambda arrivals: Bimodal(arrivals),
    "prefix-tree": lambda arrivals: PrefixTree(arrivals),
    "multi-turn": lambda arrivals: MultiTurn(arrivals),
    "agentic": lambda arrivals: Agentic(arrivals),
}


def made(kind: str, rate: float, duration_s: float, seed: int) -> Load:
    """So many requests a second for so long. Raises ConfigError for what cannot be."""
    return KINDS[kind](Arrivals(rate, duration_s)).load(seed)
