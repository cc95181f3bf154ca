"""Loads that are made up, of prompts that stand alone: each a handful of settings, and
`load(seed)`, which gives the same load for the same seed.

The defaults are of a plausible service and of no particular one. A setting that cannot be is a
`ConfigError` that names it, raised where the settings are made. Prompts that grow out of those
before them are in `kvstore.planner.synthetic_turns`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvstore.errors import ConfigError
from kvstore.planner import bounds, texts
from kvstore.planner.arrivals import Arrivals, generator
from kvstore.planner.lengths import Lengths, LogNormal
from kvstore.planner.load import Load
from kvstore.planner.texts import Prompts, Stems

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Bimodal:
    """Prompts that have nothing in common but a system prompt, if any; some are far longer."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    long_share: float = 0.1  # of the prompts
    short: Lengths = field(default_factory=lambda: LogNormal(500))  # behind the system prompt
    long: Lengths = field(default_factory=lambda: LogNormal(16_000, sigma=0.5))
    output: Lengths = field(default_factory=lambda: LogNormal(200, sigma=0.8))
    system_tokens: int = 0
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        bounds.number("Bimodal.long_share", self.long_share, 0, 1)
        bounds.whole("Bimodal.system_tokens", self.system_tokens, 0, bounds.TOKENS_MAX // 2)
        bounds.whole("Bimodal.block_tokens", self.block_tokens, 1, bounds.BLOCK_TOKENS_MAX)

    def load(self, seed: int) -> Load:
        dice = generator(seed)
        arrival = self.arrivals.draw(dice)
        count = len(arrival)
        long = dice.random(count) < self.long_share
        tokens = np.where(long, self.long.draw(count, dice), self.short.draw(count, dice))
        stems = Stems.apart(np.array([self.system_tokens]), self.block_tokens)
        return texts.load(
            Prompts(
                arrival,
                text=np.arange(count),
                stem=np.zeros(count, np.int64),
                input_tokens=tokens + self.system_tokens,
                output_tokens=self.output.draw(count, dice),
            ),
            stems,
            self.block_tokens,
        )


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Prompts that begin with a path from the root of a tree to a leaf: a template, its variant,
    its variant's variant. Some leaves are far more in use than others.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    depth: int = 3  # levels below the root, which all prompts have
    branching: int = 8  # branching ** depth leaves
    node_tokens: int = 2_048
    skew: float = 1.0  # of how often a leaf is used: Zipf's exponent; at 0 all are alike
    suffix: Lengths = field(default_factory=lambda: LogNormal(200))  # a prompt's own, at its end
    output: Lengths = field(default_factory=lambda: LogNormal(200, sigma=0.8))
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        bounds.whole("PrefixTree.depth", self.depth, 0, 64)
        bounds.whole("PrefixTree.branching", self.branching, 1, texts.STEMS_MAX)
        bounds.number("PrefixTree.skew", self.skew, 0, 10)
        most = bounds.TOKENS_MAX // 2 // (self.depth + 1)
        bounds.whole("PrefixTree.node_tokens", self.node_tokens, 1, most)
        bounds.whole("PrefixTree.block_tokens", self.block_tokens, 1, bounds.BLOCK_TOKENS_MAX)
        path = (self.depth + 1) * self.node_tokens // self.block_tokens
        if self.branching**self.depth * max(1, path) > 16 * texts.STEMS_MAX:
            raise ConfigError(
                f"PrefixTree.depth = {self.depth}: {self.branching} ** {self.depth} leaves with"
                f" {path} blocks of tree before each are too many: lower it, or branching"
            )

    def load(self, seed: int) -> Load:
        dice = generator(seed)
        arrival = self.arrivals.draw(dice)
        count, leaves = len(arrival), self.branching**self.depth
        # Which leaf has which rank is drawn: leaves next to each other are not alike in use.
        weights = dice.permutation(texts.zipf(leaves, self.skew))
        leaf = dice.choice(leaves, count, p=weights)
        stems = self._stems(leaves)
        tokens = stems.tokens[leaf] + self.suffix.draw(count, dice)
        return texts.load(
            Prompts(
                arrival,
                text=np.arange(count),
                stem=leaf,
                input_tokens=tokens,
                output_tokens=self.output.draw(count, dice),
            ),
            stems,
            self.block_tokens,
        )

    def _stems(self, leaves: int) -> Stems:
        """A path's block is of the node its last token is in, and of its place on the path."""
        path_tokens = (self.depth + 1) * self.node_tokens
        last = np.arange(1, path_tokens // self.block_tokens + 1) * self.block_tokens - 1
        level = last // self.node_tokens
        nodes = np.array([self.branching**one for one in level.tolist()], np.int64)
        named = np.cumsum(nodes) - nodes  # so many names have the places before
        ancestor = np.arange(leaves)[:, None] // (leaves // nodes)
        return Stems(
            np.full(leaves, path_tokens),
            (named + ancestor).ravel(),
            np.arange(leaves + 1) * len(last),
        )
