"""Bytes take as long as the way between two hosts does, and who knows of the ways uses the near."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvstore.core.hardware import NVLINK5
from kvstore.kernels.fleet import UNLABELLED
from kvstore.planner import outcome, presets, world
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.kinds import made
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import OURS, Policy, named
from kvstore.planner.replay import SURE, ran, replay
from kvstore.planner.world import FETCH_SECONDS
from tests.planner.clusters import A100, PLAIN, apart, cluster

BLIND = replace(OURS, name="blind", places=0.0)
SLOW = {"racks": 2, "cross_rack_bytes_per_second": 1e9}
TOKENS = 8_192
CALM = replace(SURE, noise=0.0)


def handed_over(policy: Policy, **places: float) -> tuple[np.ndarray, np.ndarray, Outcome]:
    """Two engines prefill a prompt each, one alone decodes: seconds of both from the end of the
    prefill to the first token, those of the prefill, and what became of all."""
    made = cluster(prefill=2, decode=1, **places)
    found = ran(apart([0, 30], [TOKENS, TOKENS]), made, policy, 1, CALM)
    world.check(found)
    first_of = np.argsort(found.requests["engine"])
    requests = found.requests[first_of]
    assert requests["engine"].tolist() == [0, 1]
    took = requests["first_token"] - requests["prefilled"]
    return took, requests["prefilled"] - requests["began"], outcome.of(found)


def tail(prefill: float, bytes_per_second: float) -> float:
    """KV follows the prefill layer by layer; what is left of it, and asking for it."""
    shape = presets.MODELS["llama-3-8b"]
    takes = TOKENS * shape.kv_bytes_per_token / bytes_per_second
    latency = presets.LINKS["rdma-200"].latency_seconds + FETCH_SECONDS
    return max(takes - prefill, takes / shape.layers) + latency


@pytest.mark.parametrize("policy", [PLAIN, replace(PLAIN, park=1.0, places=0.0)])
def test_kv_is_handed_over_as_fast_as_its_way_is(policy: Policy) -> None:
    link = presets.LINKS["rdma-200"].bytes_per_second
    size = TOKENS * presets.MODELS["llama-3-8b"].kv_bytes_per_token
    # The engine that decodes is of the first rack and domain, the second that prefills is not.
    took, prefill, told = handed_over(policy, **SLOW)
    wanted = [tail(prefill[0], link), tail(prefill[1], 1e9)]
    assert took == pytest.approx(wanted) and took[1] > 3 * took[0]
    assert (told.carried.link, told.carried.domain, told.carried.far) == (size, 0, size)
    took, prefill, told = handed_over(policy, domains=2)
    wanted = [tail(prefill[0], NVLINK5.bytes_per_second), tail(prefill[1], link)]
    assert took == pytest.approx(wanted)
    assert (told.carried.link, told.carried.domain, told.carried.far) == (size, size, 0)


@pytest.mark.parametrize("policy", [PLAIN, replace(PLAIN, park=1.0)])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 4), (4, 1)])
def test_no_host_hands_over_or_takes_more_than_its_link_carries(
    policy: Policy, prefill: int, decode: int
) -> None:
    """Prompts come as fast as they are prefilled; their KV takes several times as long."""
    slow = presets.LINKS["tcp-10"]
    load = apart(np.zeros(40), np.full(40, TOKENS))
    found = ran(load, cluster(prefill, decode, fabric=slow), policy, 1, CALM)
    world.check(found)
    carried = found.carried.sum() / min(prefill, decode)
    assert carried == 40 * TOKENS * presets.MODELS["llama-3-8b"].kv_bytes_per_token
    most = slow.bytes_per_second * (1 + 1e-9)
    assert carried / found.requests["first_token"].max() <= most


def test_kv_that_waited_for_room_is_moved_when_there_is_some() -> None:
    """It waited in the memory of the host that prefilled it: all of it is still to come."""
    link = presets.LINKS["tcp-10"]
    one = cluster(2, 1, fabric=link, tpot_seconds=0.006, ttft_seconds=60.0)
    load = apart([0.0, 0.0], [4_000, 4_000], output=400)
    requests = ran(load, one, replace(OURS, gated=0.0, forecast=0.0), 1, CALM).requests
    first, second = requests[np.argsort(requests["first_token"])]
    moved = 4_000 * presets.MODELS["llama-3-8b"].kv_bytes_per_token / link.bytes_per_second
    assert second["prefilled"] + moved < first["finished"], "it waits"
    waited = second["first_token"] - first["finished"]
    assert waited == pytest.approx(moved + link.latency_seconds + FETCH_SECONDS)


@pytest.mark.parametrize("policy", [OURS, named("round-robin"), named("mooncake")])
def test_one_rack_or_as_fast_uplinks_are_no_racks(policy: Policy) -> None:
    load = made("multi-turn", 3.0, 60.0, 1)
    plain = cluster(3, 2, dram_bytes=4 << 30, ttft_seconds=10.0, tpot_seconds=0.1)
    found = [ran(load, one, policy, 1) for one in (plain, replace(plain, racks=1))]
    for column in ("first_token", "finished", "engine", "fetched"):
        one, other = (world.requests[column] for world in found)
        assert np.array_equal(one, other, equal_nan=column != "engine"), column
    assert found[0].carried[0] == found[1].carried.sum() > 0


def racks(domains: int = 0) -> Cluster:
    """Four engines of each kind in two racks with slow uplinks, and in so many domains."""
    pools = Pool(Role.PREFILL, 4, A100), Pool(Role.DECODE, 4, A100)
    model, fabric = presets.MODELS["llama-3-8b"], presets.LINKS["rdma-200"]
    memory = {"dram_bytes": 20 << 30, "decode_dram_bytes": 10 << 30}
    return Cluster(model, pools, fabric, **memory, **SLOW, domains=domains)


@pytest.mark.parametrize("kind", ["multi-turn", "prefix-tree", "agentic"])
@pytest.mark.parametrize("domains", [0, 4])
def test_who_knows_of_racks_moves_less_between_them_and_is_sooner(kind: str, domains: int) -> None:
    load = made(kind, 3.0, 120.0, 1)
    told = {one.name: replay(load, racks(domains), one, 1) for one in (OURS, BLIND)}
    knowing, blind = told["ours"], told["blind"]
    assert knowing.ttft is not None and blind.ttft is not None
    assert knowing.carried.far < 0.5 * blind.carried.far
    assert knowing.ttft.mean < 0.9 * blind.ttft.mean
    assert (knowing.carried.domain > 0) == bool(domains)


def test_what_is_prefilled_is_decoded_in_its_own_domain_where_all_are_idle() -> None:
    load = apart(np.arange(40) * 20.0, np.full(40, TOKENS), output=8)
    place = {"domains": 4, "ttft_seconds": 30.0, "tpot_seconds": 0.1}
    told = {one.name: replay(load, cluster(4, 4, **place), one, 1) for one in (OURS, BLIND)}
    assert told["ours"].carried.link == 0 < told["ours"].carried.domain
    assert told["blind"].carried.link > told["blind"].carried.domain


def test_a_router_that_knows_no_places_is_told_of_none() -> None:
    load = apart([0, 1], [100, 100])
    for policy, known in ((OURS, True), (BLIND, False)):
        built = world.build(load, racks(4), policy, 1, SURE)
        hosts = built.fleet.hosts
        assert bool(len(built.fleet.near)) == known
        assert ((hosts["rack"] == UNLABELLED) & (hosts["domain"] == UNLABELLED)).all() != known
        assert built.places["domain"].tolist() == [0, 1, 2, 3] * 2
        assert built.places["rack"].tolist() == [4, 5] * 4


def test_an_engine_from_which_kv_goes_slowly_to_who_decodes_makes_nobody_late() -> None:
    """One engine decodes: what the second of those that prefill does goes to another rack."""
    load, soon = made("multi-turn", 10.0, 60.0, 1), {"ttft_seconds": 2.0, "tpot_seconds": 0.1}
    alone, beside = (
        replay(load, cluster(*engines, dram_bytes=10**11, **soon, **places), OURS, 1)
        for engines, places in (((1, 1), {}), ((2, 1), SLOW))
    )
    assert beside.share > alone.share - 0.02
    assert beside.carried.far > 0, "it is worth something all the same"
