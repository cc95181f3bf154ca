"""A cluster that cannot be is refused by name; one that can is split and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvstore.core.hardware import Fabric
from kvstore.errors import ConfigError, Invalid
from kvstore.planner import presets
from kvstore.planner.cluster import Cluster, Pool, Role
from tests.planner.clusters import A100, cluster

LARGE = presets.MODELS["llama-3-70b"]


def linked(bytes_per_second: float, latency_seconds: float) -> Cluster:
    return cluster(fabric=Fabric("wire", bytes_per_second, latency_seconds))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Pool(Role.PREFILL, 0, A100), "prefill.engines = 0: wants a whole number from 1"),
        (lambda: Pool(Role.DECODE, 1, A100, 0), "decode.tensor_parallel = 0: wants"),
        (lambda: cluster(dram_bytes=-1), "dram = -1: wants a whole number from 0"),
        (lambda: cluster(ssd_bytes=-1), "ssd = -1: wants"),
        (lambda: cluster(ttft_seconds=0.0), "ttft = 0.0: wants a number from 0.001"),
        (lambda: cluster(tpot_seconds=float("nan")), "tpot = nan: wants"),
        (lambda: cluster(ssd_bytes_per_second=1.0), "ssd_bytes_per_second = 1.0: wants"),
        (lambda: cluster(pools=()), "prefill.engines = 0: nobody does it: take 1 or more"),
        (lambda: cluster(3_000, 3_000), "engines = 6000: wants a whole number from 1 to 4,096"),
        (lambda: cluster(shape=LARGE), "does not fit 1 x A100-SXM-80GB: take 2"),
        (lambda: cluster(racks=-1), "racks = -1: wants a whole number from 0"),
        (lambda: cluster(domains=5_000), "domains = 5000: wants"),
        (lambda: cluster(racks=2, domains=3), "domains: 3 in 2 racks: as many in each, as 4"),
        (lambda: cluster(cross_rack_bytes_per_second=1e9), "1e+09: there is one rack: say how"),
        (lambda: cluster(nvlink_bytes_per_second=0.0), "nvlink_bytes_per_second = 0.0: wants"),
        (lambda: cluster(nvlink_bytes_per_second=1e9), "1e+09: there is no NVLink domain: say how"),
        (lambda: linked(1e-300, 0.0), "fabric.bytes_per_second = 1e-300: wants a number from 1000"),
        (lambda: linked(1e9, 1e12), "fabric.latency_seconds = 1000000000000.0: wants a number"),
        (lambda: cluster(2, 2).split(4), "decode.engines = 0: wants"),
    ],
)
def test_what_cannot_be_is_named(make: Callable[[], object], why: str) -> None:
    with pytest.raises(Invalid, match=re.escape(why)):
        make()


def test_a_model_that_cannot_be_split_so_is_named() -> None:
    pools = (Pool(Role.PREFILL, 1, A100, 3), Pool(Role.DECODE, 1, A100))
    with pytest.raises(Invalid, match="tensor_parallel 3 does not divide"):
        cluster(pools=pools)


def test_a_split_keeps_the_engines_and_changes_who_does_what() -> None:
    other = cluster(6, 2).split(3)
    assert (other.engines(Role.PREFILL), other.engines(Role.DECODE)) == (3, 5)
    assert str(other).startswith("3 prefill on 1 x A100-SXM-80GB + 5 decode")
    assert other.split(6) == cluster(6, 2)


def test_engines_that_do_both_stay_beside_however_many_of_the_others() -> None:
    both = Pool(Role.MIXED, 6, A100)
    three = replace(cluster(1, 2), pools=(both, *cluster(1, 2).pools))
    assert three.sized(3, 1).pools == (both, *cluster(3, 1).pools)


def test_racks_and_domains_stay_whoever_does_what() -> None:
    placed = cluster(6, 2, racks=2, domains=4)
    assert str(placed).endswith(", in 2 racks, in 4 NVLink domains")
    for other in (placed.split(3), placed.sized(9, 1), placed.together()):
        assert (other.racks, other.domains) == (2, 4)


def test_together_every_engine_does_both() -> None:
    both = cluster(6, 2).together()
    assert str(both) == "8 mixed on 1 x A100-SXM-80GB"
    assert both.pools[0].prefills and both.pools[0].decodes


def test_engines_of_two_kinds_are_not_exchanged() -> None:
    two = cluster(pools=(Pool(Role.PREFILL, 1, A100, 2), Pool(Role.DECODE, 1, A100)))
    with pytest.raises(ConfigError, match="of two kinds"):
        two.split(1)
    assert two.sized(3, 4).engines(Role.PREFILL) == 3
    three = replace(two, pools=(*two.pools, Pool(Role.DECODE, 1, A100)))
    with pytest.raises(ConfigError, match="2 of role decode: this wants 1"):
        three.pool(Role.DECODE)


def test_presets_are_typed_as_people_write_them() -> None:
    assert {"llama-3-70b", "deepseek-v3"} <= presets.MODELS.keys()
    assert {"a100", "h100", "h200", "l40s"} == presets.CARDS.keys()
    assert {"rdma-200", "tcp-10", "nvlink-4", "pcie-5"} <= presets.LINKS.keys()
    with pytest.raises(ConfigError, match=r"--fabric rdma: is one of nvlink-3, "):
        presets.named("--fabric", "rdma", presets.LINKS)


def test_a_cluster_is_equal_to_one_made_alike() -> None:
    assert cluster(2, 3) == cluster(2, 3) != cluster(3, 2)
    assert isinstance(cluster(), Cluster)
