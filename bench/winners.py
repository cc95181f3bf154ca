"""Which launch of a program is the best, by rounds in which all candidates took turns. Pure.

The default stays unless another is quicker by more than the rounds differ: of many candidates that
are alike, one is always ahead by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.rounds import Rounds
from kvstore.kernels.gpu.launch import Launch


def winner(candidates: Sequence[Launch], rounds: Rounds) -> Launch:
    """The first of `candidates` is the default; ways of `rounds` are called as launches are
    written."""
    default, *others = candidates
    best, most = default, 1.0
    for launch in others:
        gain = rounds.spread(str(default), str(launch))
        if gain.median > most and gain.median - 1 > gain.q3 - gain.q1:
            best, most = launch, gain.median
    return best
