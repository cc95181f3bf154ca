"""What becomes of a fleet that is asked for several times what it can do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kvstore.kernels import sim_world
from kvstore.kernels.sim_known import DRAM
from kvstore.kernels.sim_look import has
from kvstore.planner import presets
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import OURS, Policy, named
from kvstore.planner.replay import ran, replay
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import MultiTurn

SHORT_OF = {"prefill": (2, 4), "decode": (6, 1)}  # engines of both kinds
PATIENT = replace(OURS, hurry=0.0)


def engines(prefill: int, decode: int) -> Cluster:
    """Of a 70B model on four H100 each; a first token within 30 s, then 100 ms each."""
    card = presets.CARDS["h100"]
    return Cluster(
        presets.MODELS["llama-3-70b"],
        (Pool(Role.PREFILL, prefill, card, 4), Pool(Role.DECODE, decode, card, 4)),
        presets.LINKS["rdma-200"],
        dram_bytes=250 * 10**9,
    )


@cache
def crowded(short_of: str, policy: Policy) -> Outcome:
    """At three to six times what the cluster can do."""
    cluster = engines(*SHORT_OF[short_of])
    return replay(Bimodal(Arrivals(120, 150)).load(1), cluster, policy, 1)


def first_token(told: Outcome) -> float:
    assert told.ttft is not None
    return told.ttft.mean


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_in_a_crowd_first_tokens_come_soon_and_as_many_are_served(short_of: str) -> None:
    ours, patient = crowded(short_of, OURS), crowded(short_of, PATIENT)
    assert patient.share < 0.6, "it is a crowd"
    assert first_token(ours) < 0.5 * first_token(patient)
    assert ours.goodput > 0.93 * patient.goodput


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_in_a_crowd_ours_is_far_sooner_than_a_line(short_of: str) -> None:
    ours, line = crowded(short_of, OURS), crowded(short_of, named("mooncake"))
    assert first_token(ours) < first_token(line) / 3
    assert ours.share > 0.95 * line.share


def test_in_a_crowd_that_waits_for_room_long_prompts_are_served_too() -> None:
    ours, patient = crowded("decode", OURS), crowded("decode", PATIENT)
    assert ours.quartiles[-1] > 1.5 * patient.quartiles[-1]
    assert ours.goodput > 1.05 * patient.goodput


def test_an_idle_fleet_uses_all_of_its_memory() -> None:
    cluster = replace(engines(4, 2), dram_bytes=20 * 10**9)
    load = MultiTurn(Arrivals(1, 1_000)).load(1)
    spread, alone = (replay(load, cluster, one, 1) for one in (OURS, replace(OURS, crowding=0.0)))
    assert spread.share == alone.share == 1.0
    assert spread.hits.local > 1.1 * alone.hits.local
    assert first_token(spread) < first_token(alone)


@cache
def holders(seconds_apart: float) -> int:
    """Hosts that hold, at the end, what 200 prompts begin with."""
    shared, own, count = 40, 4, 200
    blocks = np.empty((count, shared + own), np.int64)
    blocks[:, :shared] = np.arange(shared)
    blocks[:, shared:] = shared + np.arange(count * own).reshape(count, own)
    tokens = np.full(count, blocks.shape[1] * 512, np.int32)
    load = Load(
        512,
        seconds_apart * np.arange(count, dtype=np.float64),
        tokens,
        np.full(count, 2, np.int32),
        blocks.ravel(),
        np.arange(count + 1) * blocks.shape[1],
    )
    world = ran(load, engines(4, 4), OURS, 1)
    assert (world.requests["status"] == sim_world.SERVED).all()
    return sum(bool(has(world.caches, host, DRAM, shared - 1)) for host in range(4))


def test_a_prefix_that_many_ask_for_comes_to_several_hosts() -> None:
    assert holders(60.0) == 1, "one is enough"
    assert holders(0.1) == 4
