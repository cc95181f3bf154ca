"""The default stays unless another launch is quicker by more than the rounds differ."""

from __future__ import annotations

import pytest

from bench.rounds import Rounds
from bench.winners import winner
from kvstore.kernels.gpu.launch import Launch

DEFAULT, ONE, OTHER = Launch(4), Launch(2), Launch(8)


def won(default: list[float], one: list[float], other: list[float] | None = None) -> Launch:
    seconds = {str(DEFAULT): default, str(ONE): one}
    if other is None:
        return winner([DEFAULT, ONE], Rounds(seconds))
    return winner([DEFAULT, ONE, OTHER], Rounds({**seconds, str(OTHER): other}))


def test_what_is_quicker_in_every_round_wins() -> None:
    assert won([2.0, 2.1, 1.9, 2.0], [1.5, 1.6, 1.4, 1.5]) == ONE


def test_what_is_slower_or_as_quick_does_not() -> None:
    assert won([2.0, 2.1, 1.9], [2.5, 2.6, 2.4]) == DEFAULT
    assert won([2.0, 2.1, 1.9], [2.0, 2.1, 1.9]) == DEFAULT


def test_what_is_ahead_by_less_than_the_rounds_differ_does_not() -> None:
    """Ahead by 0.1 in the median; quartiles are 0.08 apart, and 0.12."""
    assert won([1.02, 1.1, 1.18], [1.0, 1.0, 1.0]) == ONE
    assert won([0.98, 1.1, 1.22], [1.0, 1.0, 1.0]) == DEFAULT


def test_a_moment_that_slows_both_decides_nothing() -> None:
    drift = [1.0, 5.0, 2.0, 1.0]
    assert won([1.2 * one for one in drift], drift) == ONE


@pytest.mark.parametrize("quickest", [ONE, OTHER])
def test_of_several_that_win_it_is_the_quickest(quickest: Launch) -> None:
    one, other = ([1.2] * 4, [1.5] * 4) if quickest == ONE else ([1.5] * 4, [1.2] * 4)
    assert won([2.0] * 4, one, other) == quickest


def test_of_two_as_quick_it_is_the_first() -> None:
    assert won([2.0] * 4, [1.5] * 4, [1.5] * 4) == ONE


def test_the_quickest_by_chance_leaves_the_place_to_who_is_so_always() -> None:
    assert won([2.0] * 5, [1.6] * 5, [0.5, 1.0, 1.5, 4.0, 4.0]) == ONE


def test_alone_the_default_wins() -> None:
    assert winner([DEFAULT], Rounds({str(DEFAULT): [1.0]})) == DEFAULT
