"""What steps cost by a few that were run to find out, before anybody needed one.

The line of `kvstore.core.cost` that comes closest to all of them, each by its relative error. They
are few, short, and measured while other processes run. So the line keeps to what the model's shape
says: attention to a token beside the weights costs what its FLOPs do beside theirs, within a factor
of `APART`, since hardware does not reach the same share of its speed in both. Such coefficients are
the sums, with no negative weights, of those at both ends of the range: the closest are found as by
Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23), but that of three weights each
choice of those which are not 0 is tried. A fit that starts from there learns by factors, and would
never learn of what costs nothing: each weight is `LEAST` at least of the most it could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.model_shape import ModelShape
from kvstore.errors import Invalid

APART = 8.0
LEAST = 0.05  # of what it would be if some step took all its time for that

Floats = NDArray[np.float64]


def prefill_cost(shape: ModelShape, prefills: Sequence[tuple[int, int, float]]) -> PrefillCost:
    """Of (new tokens, prefix tokens, seconds), all more than 0 but the prefix.

    Raises `Invalid` where there is none.
    """
    ratio = shape.attention_flops / (2 * shape.layer_parameters)
    runs = [(new, new * (new + 2 * prefix), seconds) for new, prefix, seconds in prefills]
    return PrefillCost(*_closest(runs, ratio))


def decode_cost(shape: ModelShape, steps: Sequence[tuple[int, int, float]]) -> DecodeCost:
    """Of (sequences, context tokens of all, seconds). Raises `Invalid` where there is none."""
    # A token of context is a pair, and the unit of `attention_flops` half of one.
    return DecodeCost(*_closest(steps, shape.attention_flops / shape.layer_parameters))


def _closest(runs: Sequence[tuple[int, int, float]], ratio: float) -> list[float]:
    """a, b and c by (what b counts, what c counts, seconds); `ratio` is c to b by FLOPs."""
    if not runs:
        raise Invalid("no step was measured")
    rays = np.array([(1, 0, 0), (0, 1, ratio / APART), (0, 1, ratio * APART)])
    table = np.array(runs, float)
    work = np.column_stack([np.ones(len(runs)), table[:, :2]]) @ rays.T
    seconds = table[:, 2:]
    most: Floats = (seconds / work).min(axis=0)  # of each weight, by all runs
    shares = work * most / seconds  # of a run's time, if the weight were that
    left = 1.0 - LEAST * shares.sum(axis=1)
    found = min(_choices(shares, left), key=lambda one: float(((shares @ one - left) ** 2).sum()))
    coefficients: list[float] = ((most * (LEAST + found)) @ rays).tolist()
    return coefficients


def _choices(shares: Floats, left: Floats) -> list[Floats]:
    """The closest for each choice of weights that may be more than 0, if none is less."""
    columns, found = range(shares.shape[1]), []
    for some in chain.from_iterable(combinations(columns, count) for count in range(4)):
        one = np.zeros(len(columns))
        one[list(some)] = np.linalg.lstsq(shares[:, some], left, rcond=None)[0]
        if (one >= 0).all():
            found.append(one)
    return found
