"""What others found of routing and of disaggregation comes out of the simulation too.

Of routing: Mooncake (FAST'25, section 4, mean time to first token by scheduler). Of disaggregation:
DistServe (OSDI'24), Sarathi-Serve (OSDI'24), and what its users report: it costs more than it
brings on short prompts, over slow networks and in tiny fleets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvstore.planner import presets
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome, Times
from kvstore.planner.policies import POLICIES
from kvstore.planner.replay import replay
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import MultiTurn

PLAIN = POLICIES["least-loaded"]  # without a gate: it hides who would have waited
CHUNKS = (128, 256, 512, 1_024, 2_048)
SECONDS = 200


def engines(prefill: int, decode: int, link: str = "rdma-200") -> Cluster:
    """Of a 70B model on four H100 each; a first token within 5 s, then 50 ms each."""
    card = presets.CARDS["h100"]
    return Cluster(
        presets.MODELS["llama-3-70b"],
        (Pool(Role.PREFILL, prefill, card, 4), Pool(Role.DECODE, decode, card, 4)),
        presets.LINKS[link],
        dram_bytes=250 * 10**9,
        ttft_seconds=5.0,
        tpot_seconds=0.05,
    )


@cache
def bimodal(long_share: float, rate: float) -> Load:
    return Bimodal(Arrivals(rate, SECONDS), long_share=long_share).load(1)


@cache
def split(long_share: float, rate: float, fleet: int, link: str = "rdma-200") -> Outcome:
    """The best of all splits of a fleet by requests that are in time, then by the first token."""
    found = [
        replay(bimodal(long_share, rate), engines(one, fleet - one, link), PLAIN, 1)
        for one in range(1, fleet)
    ]
    return max(found, key=lambda one: (round(one.share, 2), -first_token(one).mean))


@cache
def together(long_share: float, rate: float, fleet: int) -> tuple[Outcome, ...]:
    """The same engines, each doing both, with chunks of every size."""
    both = engines(fleet - 1, 1)
    load = bimodal(long_share, rate)
    return tuple(replay(load, both.together(one), PLAIN, 1) for one in CHUNKS)


def first_token(told: Outcome) -> Times:
    assert told.ttft
    return told.ttft


def slowest_pace(told: Outcome) -> float:
    assert told.tpot
    return told.tpot.p99


def test_schedulers_come_in_the_order_of_mooncakes_paper() -> None:
    """Random, by load, by what each has itself, by what all have: the last wait the least."""
    card = presets.CARDS["a100"]
    cluster = Cluster(
        presets.MODELS["llama-3-70b"],
        (Pool(Role.PREFILL, 8, card, 8), Pool(Role.DECODE, 8, card, 8)),
        presets.LINKS["rdma-200"],
        dram_bytes=1_000 * 10**9,
    )
    load = MultiTurn(Arrivals(20, SECONDS)).load(1)
    mooncake = POLICIES["mooncake"]
    order = [
        replace(POLICIES["random"], fetch=0.0),
        replace(POLICIES["least-loaded"], fetch=0.0),
        replace(mooncake, fetch=0.0),
        mooncake,
    ]
    means = [first_token(replay(load, cluster, one, 1)).mean for one in order]
    assert means == sorted(means, reverse=True)
    assert means[0] > 1.5 * means[1] > 1.5 * means[2], "with room between all but the last"


@pytest.mark.parametrize(("rate", "fleet"), [(60.0, 8), (5.0, 2), (8.0, 2), (10.0, 2)])
def test_without_long_prompts_engines_are_faster_together_than_in_halves(
    rate: float, fleet: int
) -> None:
    halves = replay(bimodal(0.0, rate), engines(fleet // 2, fleet // 2), PLAIN, 1)
    good = [one for one in together(0.0, rate, fleet) if one.share > 0.99]
    assert min(first_token(one).mean for one in good) < 0.75 * first_token(halves).mean


@pytest.mark.parametrize("long_share", [0.3, 0.6])
def test_long_prompts_over_rdma_are_served_better_apart(long_share: float) -> None:
    rate = 10.0 if long_share == 0.3 else 5.0
    apart, both = split(long_share, rate, 8), together(long_share, rate, 8)
    assert apart.share > max(one.share for one in both)
    # As steady a pace of tokens as apart costs those together their first tokens.
    steady = [one for one in both if slowest_pace(one) <= 1.1 * slowest_pace(apart)]
    assert steady, "small chunks are as steady"
    assert min(first_token(one).p99 for one in steady) > 3 * first_token(apart).p99


def test_with_most_prompts_long_the_last_first_tokens_of_a_steady_fleet_are_unusable() -> None:
    apart, both = split(0.6, 5.0, 8), together(0.6, 5.0, 8)
    steady = [one for one in both if slowest_pace(one) <= 1.1 * slowest_pace(apart)]
    assert first_token(apart).p99 < 6.0
    assert min(first_token(one).p99 for one in steady) > 30.0


@pytest.mark.parametrize("long_share", [0.0, 0.1, 0.3])
def test_over_slow_ethernet_it_is_better_not_to_disaggregate(long_share: float) -> None:
    rate = {0.0: 20.0, 0.1: 20.0, 0.3: 8.0}[long_share]
    both, apart = together(long_share, rate, 8), split(long_share, rate, 8, "tcp-10")
    best = max(both, key=lambda one: one.share)
    assert best.share >= apart.share
    assert first_token(best).mean < first_token(apart).mean


@pytest.mark.parametrize(("long_share", "rate"), [(0.1, 5.0), (0.3, 2.2), (0.6, 0.8)])
def test_two_engines_do_better_together(long_share: float, rate: float) -> None:
    best = max(together(long_share, rate, 2), key=lambda one: one.share)
    assert best.share > split(long_share, rate, 2).share + 0.05
