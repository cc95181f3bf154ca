"""A real vLLM on a node that lends HBM: its blocks go there and come from there, in Triton's
interpreter, with a file in the place of a GPU's memory; and engines without a GPU have them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import Round, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.connectors.vllm.test_reuse import BLOCK, MODELS, whole_blocks
from tests.lending import lending
from tests.nodes import running

PROMPTS = [prompt(41, 2 * BLOCK + 10), prompt(42, 3 * BLOCK + 5)]


@dataclass(frozen=True)
class Seen:
    """What engines made of the same prompts, one after another."""

    stored: dict[str, int]  # moves by the one that computed them
    lent_blocks: int  # that are in HBM then
    again: Round  # by one that has the GPU too
    loaded: dict[str, int]
    elsewhere: Round  # by one that has not
    demoted: tuple[int, int]  # before it and after
    pool: Pool
    apart: Pool  # of another node, where an engine without a GPU stored the same


@pytest.fixture(scope="module", params=["llama", "deepseek_v2"])
def seen(
    request: pytest.FixtureRequest,
    model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Seen]:
    folder, options = model(request.param), MODELS[request.param]
    logs = tmp_path_factory.mktemp("lent")
    with (
        lending("64MiB", dram="64MiB", slab="8MiB") as node,
        running(dram="64MiB", slab="8MiB") as other,
    ):
        with engine(folder, logs / "apart.log", node=other.address, **options) as alone:
            alone.run(*PROMPTS)
        told = {"node": node.address, "kernels": "lent", **options}
        caller = node.caller()
        with engine(folder, logs / "first.log", **told) as first:
            first.run(*PROMPTS)
            stored = first.moved()
        there = caller.stats()
        lent_blocks = there.blocks if there.hbm.used_bytes and not dram(there) else 0
        with engine(folder, logs / "again.log", **told) as second:
            again = second.run(*PROMPTS)
            loaded = second.moved()
        before = caller.counters()["demoted_blocks"]
        with engine(folder, logs / "elsewhere.log", node=node.address, **options) as third:
            elsewhere = third.run(*PROMPTS)
        after = caller.counters()["demoted_blocks"]
        moves = (stored, lent_blocks, again, loaded, elsewhere, (before, after))
        yield Seen(*moves, Pool(node), Pool(other))


def dram(stats: object) -> int:
    return sum(one.dram_bytes for one in stats.tenants)  # type: ignore[attr-defined]


def test_what_it_computes_goes_to_hbm_and_nowhere_else(seen: Seen) -> None:
    assert set(seen.stored) == {"Resident.gathered"}
    assert seen.lent_blocks >= sum(whole_blocks(len(one)) for one in PROMPTS) // BLOCK


def test_another_engine_of_the_gpu_loads_it_from_there(seen: Seen) -> None:
    assert seen.again.cached == [whole_blocks(len(one)) for one in PROMPTS]
    assert "Resident.scattered" in seen.loaded
    assert not {"Staging.scattered", "Straight.scattered"} & seen.loaded.keys()
    assert seen.demoted[0] == 0


def test_an_engine_without_the_gpu_loads_the_same_to_the_bit(seen: Seen) -> None:
    assert seen.elsewhere.cached == seen.again.cached
    assert seen.elsewhere.outputs == seen.again.outputs
    assert seen.demoted[1] > 0


def test_the_blocks_are_those_that_an_engine_without_a_gpu_stores(seen: Seen) -> None:
    for one in PROMPTS:
        for group in range(len(seen.pool.spec.groups)):
            stored = seen.pool.get(one, group)
            assert len(stored) == whole_blocks(len(one)) // BLOCK
            assert stored == seen.apart.get(one, group)
