"""A cluster's file says what a cluster is, and what is wrong with one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.core.hardware import NVLINK5
from kvstore.core.model_shape import Latent
from kvstore.errors import ConfigError
from kvstore.planner import cluster_file, presets
from kvstore.planner.cluster import Role

GOOD = """\
model = "llama-3-8b"
fabric = "rdma-200"
dram = "8GiB"

[[pool]]
role = "prefill"
engines = 2
gpu = "h100"

[[pool]]
role = "decode"
engines = 1
gpu = "h100"
"""
OWN = """\
model = "tiny"
fabric = "wire"
dram = 1024
ssd = "1TiB"
tpot = 0.05
pool = [
    { role = "prefill", engines = 1, gpu = "Mine", tensor_parallel = 2 },
    { role = "decode", engines = 1, gpu = "l40s" },
]

[models.tiny]
layers = 2
hidden = 64
heads = 4
kv_heads = 2
head_dim = 16
intermediate = 128
vocabulary = 1000

[gpus.Mine]
memory_bytes = 96e9
memory_bytes_per_second = 4e12
bf16_flops = 500e12
pcie_bytes_per_second = 64e9

[fabrics.wire]
bytes_per_second = 1e9
latency_seconds = 1e-4
"""
NO_LATENT = "latent = { query_rank = 1, kv_rank = 0, rope_dim = 0 }"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def test_presets_by_name(tmp_path: Path) -> None:
    found = cluster_file.read(write(tmp_path, GOOD))
    assert found.shape.name == "Meta-Llama-3-8B" and found.fabric.name == "RDMA 200 Gb/s"
    assert (found.engines(Role.PREFILL), found.engines(Role.DECODE)) == (2, 1)
    assert (found.dram_bytes, found.ssd_bytes, found.ttft_seconds) == (8 << 30, 0, 30.0)


def test_numbers_of_ones_own(tmp_path: Path) -> None:
    found = cluster_file.read(write(tmp_path, OWN))
    assert found.shape.layers == 2 and found.fabric.bytes_per_second == 1e9
    assert (found.dram_bytes, found.ssd_bytes, found.tpot_seconds) == (1024, 1 << 40, 0.05)
    assert found.pools[0].gpu.bf16_flops == 500e12 and found.pools[0].tensor_parallel == 2


def test_engines_that_switch(tmp_path: Path) -> None:
    text = GOOD.replace("engines = 1", "engines = 1\nelastic = true")
    found = cluster_file.read(write(tmp_path, text))
    assert [pool.elastic for pool in found.pools] == [False, True]
    assert "2 prefill on 1 x H100-SXM + 1 elastic decode on" in str(found)


def test_racks_and_nvlink_domains(tmp_path: Path) -> None:
    places = "racks = 2\ncross_rack_bytes_per_second = 5e9\ndomains = 4\n"
    found = cluster_file.read(write(tmp_path, places + GOOD))
    assert (found.racks, found.domains, found.cross_rack_bytes_per_second) == (2, 4, 5e9)
    assert found.nvlink_bytes_per_second == NVLINK5.bytes_per_second
    plain = cluster_file.read(write(tmp_path, GOOD))
    assert (plain.racks, plain.domains, plain.cross_rack_bytes_per_second) == (0, 0, 0)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("engines = 2", "engines = 2\nelastic = 1", "pool[0].elastic = 1: wants true or false"),
        ('role = "prefill"', 'role = "mixed"\nelastic = true', "they do both already"),
        ('dram = "8GiB"', 'dram = "8GiB"\nracks = "2"', "racks = '2': wants a whole number"),
        ('dram = "8GiB"', 'dram = "8GiB"\ndomains = 1.5', "domains = 1.5: wants a whole number"),
        ('dram = "8GiB"', 'dram = "8GiB"\nnvlink_bytes_per_second = 1', "_second = 1.0: wants"),
        ('"8GiB"', '"8 apples"', "dram = '8 apples': write a size like"),
        ('dram = "8GiB"\n', "", 'dram is not there: wants as in dram = "256GiB"'),
        ('model = "llama-3-8b"\n', "", "model is not there: wants a name"),
        ('"llama-3-8b"', '"gpt-9"', "model gpt-9: is one of llama-3-8b"),
        ('"llama-3-8b"', '"llama-3-70b"', "does not fit 1 x H100-SXM: take 2"),
        ('"rdma-200"', "200", "fabric = 200: wants a name"),
        ('dram = "8GiB"', 'dram = "8GiB"\nttft = "soon"', "ttft = 'soon': wants a number"),
        ('dram = "8GiB"', 'dram = "8GiB"\nslo = 1', "slo: is not known; "),
        ('role = "prefill"', 'role = "both"', "pool[0].role = 'both': is one of prefill, decode"),
        ('role = "decode"', 'role = "prefill"', "decode.engines = 0: nobody does it"),
        ('role = "prefill"\n', "", "pool[0].role is not there"),
        ("engines = 2", "engines = 0", "prefill.engines = 0: wants a whole number from 1"),
        ("engines = 2", 'engines = "2"', "pool[0].engines = '2': wants how many"),
        ("engines = 2", "engines = 2\nrack = 1", "pool[0].rack: is not known"),
        ('dram = "8GiB"', "dram = -5", "dram = -5: wants a whole number from 0"),
        ("[[pool]]", "[[pools]]", "pools: is not known"),
        ("[[pool]]", "[[pool", "is not TOML"),
        ('"8GiB"', "[" * 5_000 + "]" * 5_000, "is not TOML"),
        ('dram = "8GiB"', 'dram = "8GiB"\nttft = 1' + 5_000 * "0", "is not TOML"),
        ('dram = "8GiB"', 'dram = "8GiB"\nttft = 1' + 400 * "0", "ttft = 1000"),
        ('dram = "8GiB"', 'dram = "8GiB"\nfailure = 5', "failure = 5: wants tables, as in [[f"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, why: str) -> None:
    path = write(tmp_path, GOOD.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        cluster_file.read(path)
    assert why in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("bf16_flops = 500e12\n", "", "gpus.Mine.bf16_flops is not there: wants a number"),
        ("heads = 4\n", "", "models.tiny.heads is not there: wants a number"),
        ("bytes_per_second = 1e9\n", "", "fabrics.wire.bytes_per_second is not there: wants"),
        ("layers = 2", "layers = 2\nlatent = { rope_dim = 1 }", "tiny.latent.kv_rank is not there"),
        ("bf16_flops = 500e12", "bf16_flops = -1", "Gpu.bf16_flops cannot be -1"),
        (
            "bf16_flops = 500e12",
            'bf16_flops = "many"',
            "gpus.Mine.bf16_flops = 'many': wants",
        ),
        ("layers = 2", "layers = 0", "ModelShape.layers cannot be 0"),
        ("layers = 2", "floors = 2", "models.tiny.floors: is not known"),
        ("bytes_per_second = 1e9\nlat", "bytes_per_second = 0\nlat", "bytes_per_second must be"),
        ("[fabrics.wire]", "[fabrics]", "fabrics: wants tables, as in [fabrics.mine]"),
        ("= 1e-4", "= []", "fabrics.wire.latency_seconds = []: wants a number"),
        ("= 96e9", "= 1" + 400 * "0", "Mine.memory_bytes = 1000"),
        ("layers = 2", "layers = inf", "ModelShape.layers cannot be inf"),
        ("layers = 2", "layers = 2.5", "ModelShape.layers cannot be 2.5"),
        ("layers = 2", "layers = [2]", "tiny.layers = [2]: wants a number"),
        ("layers = 2", "layers = 2\ntied = 1", "tiny.tied = 1: wants true or false"),
        ("layers = 2", "layers = 2\nexperts = nan", "ModelShape.experts cannot be nan"),
        ("layers = 2", "layers = 2\nlatent = 5", "tiny.latent = 5: wants a table"),
        ("layers = 2", "layers = 2\nlatent = { rank = 1 }", "tiny.latent.rank: is not known"),
        ("layers = 2", f"layers = 2\n{NO_LATENT}", "Latent.kv_rank cannot be 0"),
    ],
)
def test_wrong_numbers_of_ones_own_are_named(
    tmp_path: Path, before: str, after: str, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_file.read(write(tmp_path, OWN.replace(before, after)))
    assert why in str(caught.value)


def test_a_field_that_cannot_be_is_told_with_whose_it_is(tmp_path: Path) -> None:
    wrong = OWN.replace("memory_bytes = 96e9", "memory_bytes = 0")
    with pytest.raises(ConfigError, match=r"cluster.toml: gpus.Mine: Gpu.memory_bytes cannot be 0"):
        cluster_file.read(write(tmp_path, wrong))


def test_a_latent_model_may_project_its_queries_at_once(tmp_path: Path) -> None:
    latent = "layers = 2\nlatent = { kv_rank = 512, rope_dim = 64 }"
    found = cluster_file.read(write(tmp_path, OWN.replace("layers = 2", latent)))
    assert found.shape.latent == Latent(None, 512, 64)


def test_what_is_given_beside_a_file_need_not_be_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('dram = "8GiB"\n', "").replace('fabric = "rdma-200"\n', ""))
    given = {"dram_bytes": 1 << 30, "fabric": presets.LINKS["tcp-10"]}
    found = cluster_file.read(path, given)
    assert (found.dram_bytes, found.fabric.name) == (1 << 30, "TCP 10 Gb/s")


def test_what_a_file_says_is_looked_at_with_what_is_given_beside_it(tmp_path: Path) -> None:
    dies = '[[failure]]\nrole = "decode"\nengine = 5\nat = 1\n'
    path = write(tmp_path, f"cross_rack_bytes_per_second = 1e9\n{GOOD}{dies}")
    found = cluster_file.read(path, {"racks": 2}, {Role.DECODE: 8})
    assert (found.racks, found.engines(Role.DECODE), found.failures[0].number) == (2, 8, 5)
    with pytest.raises(ConfigError, match=r"toml, with what is given beside it: failure: decode "):
        cluster_file.read(path, {"racks": 2}, {Role.PREFILL: 8})
    with pytest.raises(ConfigError, match=r"cluster.toml: cross_rack_bytes_per_second = 1e\+09"):
        cluster_file.read(path)


def test_of_two_pools_of_a_role_it_is_not_known_which_has_so_many_engines(tmp_path: Path) -> None:
    more = GOOD + GOOD[GOOD.rindex("[[pool]]") :]
    assert cluster_file.read(write(tmp_path, more), {}, {Role.PREFILL: 8}).engines(Role.DECODE) == 2
    with pytest.raises(ConfigError, match="pools: 2 of role decode: this wants 1"):
        cluster_file.read(write(tmp_path, more), {}, {Role.DECODE: 8})
