"""Texts that grow by turns: each prompt is the one before, its answer, and something more.

The load is one of a service that has been up for long: texts that began before it are in it with
their later turns, so that the rate is the same from its first second to its last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ConfigError
from kvstore.planner import bounds, spans, texts
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.lengths import Lengths
from kvstore.planner.load import Load
from kvstore.planner.spans import Numbers, Seconds
from kvstore.planner.texts import Prompts, Stems

_LEAD = 8  # times the mean life of a text: one in some 3,000 is longer, and misses its end


@dataclass(frozen=True, slots=True)
class Turns:
    """How texts grow."""

    arrivals: Arrivals  # of all turns together
    mean: float  # turns a text; geometric
    gap_s: float  # mean time from one turn to the next; exponential
    opening: Lengths  # what the first turn adds to the stem
    addition: Lengths  # what each later one adds to the answer before
    output: Lengths
    context_tokens_max: int  # a prompt that would be longer, and all after it, are not sent

    def load(
        self,
        stems: Stems,
        weights: NDArray[np.float64],
        block_tokens: int,
        dice: np.random.Generator,
    ) -> Load:
        """Texts with stems drawn by weight. Raises ConfigError if they are too many, or none."""
        lead_s = _LEAD * self.mean * self.gap_s
        if self.arrivals.rate * (lead_s + self.arrivals.duration_s) > bounds.REQUESTS_MAX:
            raise ConfigError(
                f"arrivals.rate = {self.arrivals.rate:g}: texts of {self.mean:g} turns,"
                f" {self.gap_s:g} s apart, are too many at a time: lower one of the three"
            )
        starts = self.arrivals.starts(self.mean, lead_s, dice)
        turns = dice.geometric(1 / self.mean, len(starts))
        first = spans.offsets(turns)
        text = spans.owners(first)
        stem = dice.choice(len(weights), len(starts), p=weights)[text]
        arrival = starts[text] + self._since_start(first, dice)
        output = self.output.draw(len(text), dice)
        tokens = stems.tokens[stem] + self._behind_stem(first, output, dice)
        sent = (arrival >= 0) & (arrival < self.arrivals.duration_s)
        if not sent.any():
            raise self.arrivals.none()
        sent &= tokens <= self.context_tokens_max
        if not sent.any():
            raise ConfigError(
                f"context_tokens_max = {self.context_tokens_max}: every prompt is longer: raise it"
            )
        columns = (column[sent] for column in (text, stem, tokens, output))
        return texts.load(Prompts(arrival[sent], *columns), stems, block_tokens)

    def _since_start(self, first: Numbers, dice: np.random.Generator) -> Seconds:
        gaps = dice.exponential(self.gap_s, first[-1])
        total = np.cumsum(gaps)
        since: Seconds = total - np.repeat(total[first[:-1]], np.diff(first))
        return since

    def _behind_stem(self, first: Numbers, output: Numbers, dice: np.random.Generator) -> Numbers:
        added = self.addition.draw(len(output), dice)
        added[1:] += output[:-1]
        added[first[:-1]] = self.opening.draw(len(first) - 1, dice)
        return spans.running(added, first)
