"""Names of blocks, and which block stands behind which.

A load's ids stand for a block and all before it in its prompt, so an id has one parent: the id
before it, or none. Names are whole numbers from 0, dense enough to index an array with.
"""

from __future__ import annotations

import numpy as np

from kvstore.planner.spans import Numbers

ROOT = -1  # what stands before the first block of a request


def by_appearance(names: Numbers) -> Numbers:
    """The names numbered anew: the first that appears is 0, the next new one 1."""
    debut = _debut(names)
    new = debut[names] == np.arange(len(names))
    numbers = np.empty(len(debut), np.int64)
    numbers[names[new]] = np.arange(np.count_nonzero(new))
    return numbers[names]


def parents(names: Numbers, first: Numbers) -> Numbers:
    """For each block the one before it in its request. No request may be without blocks."""
    before = np.empty_like(names)
    before[1:] = names[:-1]
    before[first[:-1]] = ROOT
    return before


def stray(names: Numbers, first: Numbers) -> tuple[int, int] | None:
    """The first row whose block stood behind another one before, and the row where it did."""
    before = parents(names, first)
    debut = _debut(names)[names]
    wrong = np.flatnonzero(before[debut] != before)
    return (int(wrong[0]), int(debut[wrong[0]])) if len(wrong) else None


def by_prefix(names: Numbers, first: Numbers) -> Numbers:
    """Names of what a block holds made into names of a block and all before it.

    Two rows are given one number where they are at one depth and their requests are equal up to
    there. All requests are gone through together, a depth at a time.
    """
    lengths = np.diff(first)
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = first[:-1][longest_first], lengths[longest_first]
    kinds = int(names.max(initial=-1)) + 1
    numbers, count = np.empty_like(names), 0
    before = np.full(len(starts), ROOT)
    for depth in range(int(lengths.max(initial=0))):
        deep = int(np.searchsorted(-lengths, -depth))  # so many requests are longer
        here = starts[:deep] + depth
        found, number = np.unique((before[:deep] + 1) * kinds + names[here], return_inverse=True)
        before = number + count
        numbers[here] = before
        count += len(found)
    return numbers


def _debut(names: Numbers) -> Numbers:
    """For each name the row where it is met first; anything where it is not met."""
    debut = np.zeros(int(names.max(initial=-1)) + 1, np.int64)
    debut[names[::-1]] = np.arange(len(names))[::-1]  # of equal ones the last written stays
    return debut
