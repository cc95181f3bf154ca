"""Engines that switch between prefilling and decoding: served better where the load changes, not
worse where it does not, and nobody is forgotten on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import ConfigError
from kvstore.kernels import sim_world
from kvstore.kernels.sim_world import World
from kvstore.planner import outcome, world
from kvstore.planner.cluster import Cluster, Failure, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import OURS, Policy, named
from kvstore.planner.replay import ran, replay
from tests.planner.clusters import A100, apart, cluster

ENGINES, HALF_S = 8, 300
SOON = {"ttft_seconds": 10.0, "tpot_seconds": 0.05}
SHORT, LONG = (45, 600, 600), (9, 8_000, 200)  # prompts a second, their tokens, those of answers


def phases(*parts: tuple[int, int, int], seconds: float = HALF_S, seed: int = 3) -> Load:
    """One kind of prompts after the other, so long each."""
    arrival, tokens, output = [], [], []
    for number, (rate, prompt, answer) in enumerate(parts):
        dice, count = np.random.default_rng((seed, number)), int(rate * seconds)
        arrival.append(np.sort(dice.uniform(0, seconds, count)) + number * seconds)
        tokens.append(np.maximum(16, dice.lognormal(np.log(prompt), 0.4, count)).astype(int))
        output.append(np.full(count, answer, np.int32))
    load = apart(np.concatenate(arrival), np.concatenate(tokens))
    return replace(load, output_tokens=np.concatenate(output))


def switched(load: Load, fixed: Cluster, *failures: Failure, policy: Policy = OURS) -> World:
    """After the last has ended, with nothing left anywhere."""
    found = ran(load, replace(fixed.switching(), failures=failures), policy, 1)
    world.check(found)
    return found


def shares(load: Load) -> dict[int, float]:
    """In time, by how many of the engines prefill."""
    return {
        prefill: replay(load, cluster(prefill, ENGINES - prefill, **SOON), OURS, 1).share
        for prefill in range(1, ENGINES)
    }


def test_where_prompts_grow_long_halfway_more_is_served_than_by_the_first_half_s_best_split() -> (
    None
):
    fixed = shares(phases(SHORT, SHORT))
    best = max(fixed, key=lambda prefill: fixed[prefill])
    split, load = cluster(best, ENGINES - best, **SOON), phases(SHORT, LONG)
    stays, turns = replay(load, split, OURS, 1), outcome.of(switched(load, split))
    assert turns.share > stays.share + 0.1
    assert 1 <= turns.switches <= 5 and stays.switches == 0


@pytest.mark.parametrize("kind", [SHORT, LONG, (40, 600, 600), (20, 1_000, 400)])
def test_a_steady_load_is_served_no_worse_than_by_its_best_split(
    kind: tuple[int, int, int],
) -> None:
    load = phases(kind, kind)
    fixed = shares(load)
    best = max(fixed, key=lambda prefill: fixed[prefill])
    split = cluster(best, ENGINES - best, **SOON)
    turns = outcome.of(switched(load, split))
    assert turns.share >= fixed[best] - 0.02 and turns.switches <= 2


def test_a_bad_split_is_mended() -> None:
    load, split = phases(LONG, LONG), cluster(1, ENGINES - 1, **SOON)
    stays, turns = replay(load, split, OURS, 1), switched(load, split)
    assert outcome.of(turns).share > stays.share + 0.2
    prefills = int((turns.engines["role"] == sim_world.PREFILLS).sum())
    assert prefills == 1 + outcome.of(turns).switches >= 3


def test_an_engine_finishes_what_it_has_before_it_switches() -> None:
    """Every request is decoded where it was let in: nothing is decided anew."""
    load, split = phases(LONG, seconds=200), cluster(1, 3, **SOON)
    found = switched(load, split)
    assert outcome.of(found).switches >= 1
    assert not found.requests["made"].any(), "somebody's tokens were made again"


def test_what_engines_did_before_they_switched_counts_as_that() -> None:
    load, split = phases(LONG, seconds=200), cluster(1, 3, **SOON)
    found = switched(load, split)
    told, engines = outcome.of(found), found.engines
    assert told.switches >= 1
    span = max(float(load.arrival[-1]), float(np.nanmax(found.requests["finished"])))
    prefills, decodes = (outcome.in_role(found, phase, span) for phase in (0, 1))
    assert prefills[0] + decodes[0] == pytest.approx([span] * 4), "each has one role at a time"
    assert prefills[1] + decodes[1] == pytest.approx(engines["busy_seconds"])
    assert (decodes[1] > 0.0).sum() >= 3, "those who prefill at last have decoded"
    assert told.prefill_busy == pytest.approx(prefills[1].sum() / prefills[0].sum())
    assert told.decode_busy == pytest.approx(decodes[1].sum() / decodes[0].sum())
    assert max(told.prefill_busy, told.decode_busy, told.decode_full) <= 1.0


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    kills=st.lists(
        st.tuples(
            st.sampled_from([Role.PREFILL, Role.DECODE]),
            st.integers(0, 1),
            st.floats(55.0, 130.0),
            st.one_of(st.just(float("inf")), st.floats(0.01, 20.0)),
        ),
        max_size=4,
    ),
    name=st.sampled_from(["ours", "mooncake", "round-robin", "dynamo"]),
    seed=st.integers(0, 100),
    prompts=st.sampled_from([300, 8_000]),
)
def test_whatever_dies_while_engines_switch_every_request_ends_and_nothing_is_left(
    kills: list[tuple[Role, int, float, float]], name: str, seed: int, prompts: int
) -> None:
    load = phases((6, prompts, 300), seconds=150, seed=seed)
    split = cluster(2, 2, dram_bytes=10**10, **SOON)
    found = switched(load, split, *(Failure(*one) for one in kills), policy=named(name))
    sizes = found.requests["tokens"] + found.requests["output"]
    assert (sizes == load.input_tokens + load.output_tokens).all(), "tokens are lost or made twice"


def test_engines_that_do_both_at_once_have_nothing_to_switch_to() -> None:
    with pytest.raises(ConfigError, match=r"mixed\.elastic"):
        Pool(Role.MIXED, 1, A100, elastic=True)
    assert not any(pool.elastic for pool in cluster(2, 2).switching().together().pools)
