"""Clients of one fleet, of which some ask for far more than there is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kvstore.planner.arrivals import Arrivals
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import OURS, Policy, named
from kvstore.planner.replay import replay
from kvstore.planner.synthetic import Bimodal
from tests.planner.test_crowd import SHORT_OF, engines

UNFAIR = replace(OURS, fair=0.0)


def divided(load: Load, *parts: float) -> Load:
    """Each request is a client's by chance, by their parts of all."""
    dice = np.random.default_rng(1)
    client = dice.choice(len(parts), len(load), p=np.array(parts) / sum(parts))
    return replace(load, client=client.astype(np.int32))


@cache
def shared(short_of: str, policy: Policy, rate: float, *parts: float) -> Outcome:
    load = divided(Bimodal(Arrivals(rate, 180)).load(1), *parts)
    return replay(load, engines(*SHORT_OF[short_of]), policy, 1)


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_who_asks_for_less_than_a_share_gets_nearly_all_of_it(short_of: str) -> None:
    fair, unfair = (shared(short_of, one, 90, 95, 5) for one in (OURS, UNFAIR))
    assert unfair.clients[1] < 0.7, "there is too little for all"
    assert fair.clients[1] > 0.87
    assert fair.goodput > 0.93 * unfair.goodput, "and it costs the others little"


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_who_asks_for_more_gets_as_much_as_each_other(short_of: str) -> None:
    parts = (80, 40, 2)
    fair, unfair = (shared(short_of, one, 120, *parts) for one in (OURS, UNFAIR))
    had, had_unfair = (np.array(one.clients) * parts for one in (fair, unfair))
    assert had_unfair[0] > 1.7 * had_unfair[1], "who asks twice as much gets that"
    assert had[0] < 1.4 * had[1]
    assert fair.clients[2] > 0.87


def test_while_there_is_enough_for_all_it_changes_nothing() -> None:
    fair, unfair = (shared("prefill", one, 2, 95, 5) for one in (OURS, UNFAIR))
    assert fair == unfair and fair.share == 1.0


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_a_single_client_is_served_as_if_nobody_counted(short_of: str) -> None:
    assert shared(short_of, OURS, 90, 1) == shared(short_of, UNFAIR, 90, 1)


def test_rivals_serve_whoever_comes() -> None:
    told = shared("prefill", named("mooncake"), 90, 95, 5)
    assert told.clients[1] < 0.7
