"""Spans: the rows of a column that holds something of every request, one request after another.

`first[i]` is where the span of request i begins and `first[i + 1]` where it ends, so there is one
more offset than there are spans. Whatever is done here is done to all spans at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Tokens = NDArray[np.int32]
Numbers = NDArray[np.int64]


def offsets(lengths: NDArray[Any]) -> Numbers:
    """`first` of spans of these lengths."""
    first = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=first[1:])
    return first


def owners(first: Numbers) -> Numbers:
    """For each row the number of its span."""
    return np.repeat(np.arange(len(first) - 1), np.diff(first))


def positions(first: Numbers) -> Numbers:
    """For each row its place in its span, from 0."""
    return np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))


def rows(first: Numbers, which: Numbers) -> Numbers:
    """The rows of some spans, in the order in which the spans are named."""
    lengths = np.diff(first)[which]
    picked = offsets(lengths)
    return np.arange(picked[-1]) + np.repeat(first[which] - picked[:-1], lengths)


def running(values: Numbers, first: Numbers) -> Numbers:
    """For each row the sum of its span up to and with it. No span may be empty."""
    total = np.cumsum(values)
    return total - np.repeat(total[first[:-1]] - values[first[:-1]], np.diff(first))
