"""A replay agrees with what can be worked out by hand, and nothing in it is lost."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvstore.errors import ConfigError
from kvstore.kernels import sim_world
from kvstore.kernels.engine_time import decode_takes, prefill_takes
from kvstore.planner import presets, world
from kvstore.planner import replay as module
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Pool, Role
from kvstore.planner.policies import POLICIES, Policy, named
from kvstore.planner.replay import ran, replay
from kvstore.planner.synthetic import Bimodal, PrefixTree
from kvstore.planner.synthetic_turns import Agentic, MultiTurn
from kvstore.planner.world import Doubt
from tests.planner import clusters
from tests.planner.clusters import PLAIN

SURE = Doubt(noise=0.0)
H100 = presets.CARDS["h100"]


def test_a_prompt_alone_takes_its_prefill_and_the_tail_of_its_transfer() -> None:
    """KV leaves layer by layer, so of a transfer shorter than the prefill its last layer is left,
    and of a longer one what the prefill did not hide."""
    for tokens in (300, 5_000, 20_000):
        for link in ("rdma-200", "tcp-10"):
            cluster = clusters.cluster(fabric=clusters.presets.LINKS[link])
            done = ran(clusters.apart([0.0], [tokens]), cluster, PLAIN, 1, SURE)
            took = prefill_takes(done.times, 0, float(tokens), 0.0)
            moved = tokens * cluster.shape.kv_bytes_per_token / cluster.fabric.bytes_per_second
            tail = max(moved - took, moved / cluster.shape.layers) + done.rules.latency
            assert done.requests["first_token"][0] == pytest.approx(took + tail, rel=1e-9)


def test_blocks_come_over_the_link_at_its_speed_and_are_not_computed() -> None:
    """The second prompt is sent to the other engine: round-robin does not look at prefixes."""
    tokens, cluster = 16 * 512, clusters.cluster(prefill=2, dram_bytes=64 << 30)
    load = clusters.same(2, 100.0, tokens)
    done = ran(load, cluster, replace(PLAIN, fetch=1.0), 1, SURE)
    first, second = done.requests
    assert (first["reused"], second["reused"]) == (0, 16)
    assert (first["fetched"], second["fetched"]) == (0, 16)
    moved = 16 * 512 * cluster.shape.kv_bytes_per_token / cluster.fabric.bytes_per_second
    latency = cluster.fabric.latency_seconds + world.FETCH_SECONDS
    assert second["began"] - second["arrival"] == pytest.approx(moved + latency, rel=1e-9)
    took = prefill_takes(done.times, second["engine"], 1.0, tokens - 1.0)
    assert second["prefilled"] - second["began"] == pytest.approx(took, rel=1e-9)


def test_what_was_handed_over_is_fetched_from_the_host_that_decodes() -> None:
    plain = clusters.cluster(decode_dram_bytes=64 << 30)
    fetching = replace(PLAIN, fetch=1.0)
    for cluster, blocks in ((plain, 16), (replace(plain, decode_dram_bytes=0), 0)):
        done = ran(clusters.same(2, 100.0, 16 * 512), cluster, fetching, 1, SURE)
        assert done.requests["fetched"].tolist() == [0, blocks]
        assert done.requests["reused"].tolist() == [0, blocks]


def test_no_more_requests_are_in_time_a_second_than_come() -> None:
    told = replay(clusters.apart([0.0, 2.0, 4.0], [500] * 3), clusters.cluster(), PLAIN, 1)
    assert (told.rate, told.share) == (0.5, 1.0)
    assert told.goodput_requests == pytest.approx(told.rate)
    assert told.goodput == pytest.approx(told.rate * 502)


def test_what_comes_in_the_middle_of_a_step_is_decoded_from_the_next_one_on() -> None:
    load = clusters.apart([0.0, 1.0], [4_000, 4_000], output=2)
    load.output_tokens[0] = 400
    done = ran(load, clusters.cluster(), PLAIN, 1, SURE)
    first, second = done.requests
    alone, both = (decode_takes(done.times, 1, 1.0, batch, 4_000.0 * batch) for batch in (1.0, 2.0))
    assert first["first_token"] + 10 * alone < second["first_token"] < first["finished"]
    step = second["finished"] - second["first_token"]
    assert both * 0.99 < step < (alone + both) * 1.02


def test_a_prompt_s_short_end_is_computed_each_time() -> None:
    """Blocks are stored whole: no cache finds more than the load's own account says."""
    load = clusters.same(20, 1.0, 16 * 512 + 500)
    told = replay(load, clusters.cluster(dram_bytes=64 << 30), PLAIN, 1)
    assert told.hits.all == pytest.approx(load.describe().hit_rate_max)
    load = clusters.same(20, 1.0, 500)
    assert replay(load, clusters.cluster(dram_bytes=64 << 30), PLAIN, 1).hits.all == 0.0


@pytest.mark.parametrize("busy", [0.4, 0.75])
def test_a_queue_is_as_long_as_pollaczek_and_khinchine_say(busy: float) -> None:
    """One engine, first come first served, Poisson arrivals: M/G/1. The mean wait is
    rate E[S^2] / (2 (1 - busy))."""
    cluster, count = clusters.cluster(decode=4), 20_000
    waits, theory = [], []
    for seed in range(8):
        dice = np.random.default_rng(seed)
        tokens = np.rint(np.clip(dice.lognormal(7, 0.8, count), 32, 16_000))
        alone = ran(clusters.apart(np.arange(count) * 60.0, tokens), cluster, PLAIN, seed, SURE)
        service = alone.requests["prefilled"] - alone.requests["began"]
        rate = busy / service.mean()
        arrival = np.cumsum(dice.exponential(1 / rate, count))
        done = ran(clusters.apart(arrival, tokens), cluster, PLAIN, seed, SURE)
        waits.append((done.requests["began"] - done.requests["arrival"]).mean())
        theory.append(rate * (service**2).mean() / (2 * (1 - busy)))
    assert np.mean(waits) == pytest.approx(np.mean(theory), rel=0.06)


LOADS = {
    "bimodal": Bimodal(Arrivals(12, 100), system_tokens=1_000),
    "prefix-tree": PrefixTree(Arrivals(30, 60)),
    "multi-turn": MultiTurn(Arrivals(40, 60), think_s=10),
    "agentic": Agentic(Arrivals(20, 100)),
}


@pytest.mark.parametrize("name", [*POLICIES, "raw-mooncake", "raw-random"])
@pytest.mark.parametrize("kind", LOADS)
def test_every_request_ends_once_and_nothing_is_left(name: str, kind: str) -> None:
    """With too little of everything, so that all that can happen does."""
    for seed, (prefill, decode) in enumerate([(1, 1), (3, 1), (2, 5)]):
        cluster = clusters.cluster(
            prefill,
            decode,
            dram_bytes=2 << 30,
            ssd_bytes=4 << 30,
            ttft_seconds=5,
            tpot_seconds=0.03,
        )
        for one in (cluster, cluster.together()):
            done = ran(LOADS[kind].load(seed), one, named(name), seed, Doubt(error=0.3))
            world.check(done)


@pytest.mark.parametrize("name", ["ours", "raw-round-robin"])
def test_an_engine_that_does_both_decodes_what_others_have_prefilled(name: str) -> None:
    pools = Pool(Role.PREFILL, 1, H100), Pool(Role.MIXED, 1, H100)
    both = replace(clusters.cluster(), pools=pools)
    done = ran(MultiTurn(Arrivals(30, 40)).load(3), both, named(name), 0)
    world.check(done)
    assert (done.requests["status"] == sim_world.SERVED).all()


def test_a_cluster_under_no_strain_serves_all_in_time() -> None:
    cluster = clusters.cluster(2, 2, ttft_seconds=30, tpot_seconds=0.1, dram_bytes=8 << 30)
    for name in POLICIES:
        told = replay(MultiTurn(Arrivals(1, 300)).load(1), cluster, named(name), 1)
        assert told.share == 1.0 and told.ended["served"] == told.requests
        assert told.hits.all > 0.3 and told.quartiles == (1.0,) * 4


@pytest.mark.parametrize("policy", [POLICIES["ours"], named("mooncake"), named("random")])
def test_the_same_seed_has_the_same_outcome_and_another_has_not(policy: Policy) -> None:
    load = Agentic(Arrivals(8, 60)).load(1)
    cluster = clusters.cluster(2, 1, dram_bytes=4 << 30, ttft_seconds=4, tpot_seconds=0.05)
    doubt = Doubt(error=0.3, bias=-0.3)
    assert replay(load, cluster, policy, 5, doubt) == replay(load, cluster, policy, 5, doubt)
    assert replay(load, cluster, policy, 5, doubt) != replay(load, cluster, policy, 6, doubt)


@pytest.mark.parametrize("bias", [-0.3, 0.5])
def test_a_router_that_is_told_lies_is_off_by_as_much_until_it_has_learned(bias: float) -> None:
    cluster = clusters.cluster()
    first, later = (clusters.apart(np.arange(n) * 10.0, [4_000] * n) for n in (2, 1_000))
    sure, biased = (replay(first, cluster, PLAIN, 1, Doubt(bias=one)) for one in (0.0, bias))
    assert abs(sure.bias) < 0.1
    assert (1 - biased.bias) / (1 - sure.bias) == pytest.approx(1 + bias, rel=0.05)
    sure, biased = (replay(later, cluster, PLAIN, 1, Doubt(bias=one)) for one in (0.0, bias))
    assert (1 - biased.bias) / (1 - sure.bias) == pytest.approx(1.0, abs=0.1)


def test_more_memory_never_finds_less_of_one_prompt() -> None:
    load = clusters.same(20, 1.0, 16 * 512)
    some = [
        replay(load, clusters.cluster(dram_bytes=size << 20), PLAIN, 1).hits.all
        for size in (0, 256, 512, 1024, 2048)
    ]
    assert some == sorted(some) and some[0] == 0 and some[-1] > 0.9


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"error": 1.5}, "error = 1.5: wants a number from 0 to 0.95"),
        ({"bias": -1.0}, "bias = -1.0: wants a number from -0.95"),
        ({"error": 0.5, "bias": -0.6}, "bias = -0.6: wants a number from -0.45"),
        ({"noise": float("nan")}, "noise = nan: wants"),
    ],
)
def test_doubt_that_would_make_prefills_take_no_time_is_refused(
    settings: dict[str, float], why: str
) -> None:
    with pytest.raises(ConfigError, match=why.replace(".", r"\.")):
        Doubt(**settings)


def simulator(path: Path, answer: int) -> ModuleType:
    """One whose code is kept, as it stands there now."""
    path.write_text(
        f"from numba import njit\n\n\n@njit(cache=True)\ndef run():\n    return {answer:_}\n"
    )
    spec = importlib.util.spec_from_file_location("simulator", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_code_of_other_sources_is_not_taken_for_the_simulators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (1, 20):
        made = simulator(tmp_path / "simulation.py", answer)
        monkeypatch.setattr(module, "simulation", made)
        assert not module.compiled()
        assert made.run() == answer
        assert module.compiled()
