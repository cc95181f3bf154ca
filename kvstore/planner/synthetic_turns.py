"""Loads that are made up, of prompts that grow out of those before them: each a handful of
settings, and `load(seed)`, which gives the same load for the same seed.

A setting that cannot be is a `ConfigError` that names it, raised where the settings are made.
Burstiness is that of beginnings, of conversations or tasks; what follows comes at its own pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvstore.planner import bounds, texts
from kvstore.planner.arrivals import Arrivals, generator
from kvstore.planner.lengths import Lengths, LogNormal, Uniform
from kvstore.planner.load import Load
from kvstore.planner.synthetic import BLOCK_TOKENS
from kvstore.planner.texts import Stems
from kvstore.planner.turns import Turns

CONTEXT_TOKENS_MAX = 1 << 17  # what most models of today are served with


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations behind one system prompt: each turn has all before it in its prompt."""

    arrivals: Arrivals = field(default_factory=Arrivals)  # of all turns together
    system_tokens: int = 1_000
    turns_mean: float = 4.0  # geometric
    think_s: float = 60.0  # mean from one turn to the next, the answer's time in it; exponential
    user: Lengths = field(default_factory=lambda: LogNormal(150))  # tokens a turn adds
    output: Lengths = field(default_factory=lambda: LogNormal(300, sigma=0.8))
    context_tokens_max: int = CONTEXT_TOKENS_MAX  # where a conversation ends, whoever has more
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        bounds.whole("MultiTurn.system_tokens", self.system_tokens, 0, bounds.TOKENS_MAX // 2)
        bounds.number("MultiTurn.turns_mean", self.turns_mean, 1, 1e4)
        bounds.number("MultiTurn.think_s", self.think_s, 0, bounds.SECONDS_MAX)
        _context("MultiTurn", self.context_tokens_max, self.system_tokens)
        bounds.whole("MultiTurn.block_tokens", self.block_tokens, 1, bounds.BLOCK_TOKENS_MAX)

    def load(self, seed: int) -> Load:
        stems = Stems.apart(np.array([self.system_tokens]), self.block_tokens)
        turns = Turns(
            self.arrivals,
            self.turns_mean,
            self.think_s,
            opening=self.user,
            addition=self.user,
            output=self.output,
            context_tokens_max=self.context_tokens_max,
        )
        return turns.load(stems, np.ones(1), self.block_tokens, generator(seed))


@dataclass(frozen=True, slots=True)
class Agentic:
    """Agents that call a model in quick succession: each kind has its tools' definitions in front,
    and each call has what the tool answered appended.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)  # of all calls together
    kinds: int = 8
    skew: float = 1.0  # of how often a kind is used: Zipf's exponent; at 0 all are alike
    tools: Lengths = field(default_factory=lambda: Uniform(4_000, 16_000))  # drawn once a kind
    task: Lengths = field(default_factory=lambda: LogNormal(800, sigma=0.8))
    calls_mean: float = 10.0  # a task; geometric
    gap_s: float = 3.0  # mean from one call to the next: the answer and the tool; exponential
    result: Lengths = field(default_factory=lambda: LogNormal(600, sigma=1.2))
    output: Lengths = field(default_factory=lambda: LogNormal(150, sigma=0.8))
    context_tokens_max: int = CONTEXT_TOKENS_MAX  # where a task is given up
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        bounds.whole("Agentic.kinds", self.kinds, 1, texts.STEMS_MAX)
        bounds.number("Agentic.skew", self.skew, 0, 10)
        bounds.number("Agentic.calls_mean", self.calls_mean, 1, 1e4)
        bounds.number("Agentic.gap_s", self.gap_s, 0, bounds.SECONDS_MAX)
        _context("Agentic", self.context_tokens_max, 0)
        bounds.whole("Agentic.block_tokens", self.block_tokens, 1, bounds.BLOCK_TOKENS_MAX)

    def load(self, seed: int) -> Load:
        dice = generator(seed)
        stems = Stems.apart(self.tools.draw(self.kinds, dice), self.block_tokens)
        turns = Turns(
            self.arrivals,
            self.calls_mean,
            self.gap_s,
            opening=self.task,
            addition=self.result,
            output=self.output,
            context_tokens_max=self.context_tokens_max,
        )
        return turns.load(stems, texts.zipf(self.kinds, self.skew), self.block_tokens, dice)


def _context(name: str, context_tokens_max: int, system_tokens: int) -> None:
    field = f"{name}.context_tokens_max"
    bounds.whole(field, context_tokens_max, system_tokens + 1, bounds.TOKENS_MAX)
