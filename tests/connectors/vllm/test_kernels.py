"""A real vLLM whose KV goes by the kernels of a GPU, in Triton's interpreter: what they store,
others load, and what others stored, they load to the bit.

No GPU is here. vLLM computes on the CPU, and its tensors are moved as if they lay in HBM: straight
to slots and from there, and through pinned memory.
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
from tests.nodes import running

THEIRS = [prompt(31, 2 * BLOCK + 10), prompt(32, 4 * BLOCK + 16)]
WAYS = {"straight": prompt(33, 3 * BLOCK + 5), "pinned": prompt(34, 3 * BLOCK + 7)}
OWNER = {"straight": "Straight", "pinned": "Staging"}


@dataclass(frozen=True)
class Seen:
    """What engines on one node made of prompts, one engine after another."""

    loaded: dict[str, Round]  # by the kernels, each way: what an engine without them stored
    moved: dict[str, dict[str, int]]
    after: Round  # all of it, in the end, by an engine without them
    pool: Pool
    apart: Pool  # of another node, where such an engine stored the same


@pytest.fixture(scope="module", params=["llama", "deepseek_v2"])
def seen(
    request: pytest.FixtureRequest,
    model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Seen]:
    folder, options = model(request.param), MODELS[request.param]
    logs = tmp_path_factory.mktemp("kernels")
    loaded, moved = {}, {}
    with running(dram="256MiB", slab="8MiB") as node, running(dram="64MiB", slab="8MiB") as other:
        with engine(folder, logs / "apart.log", node=other.address, **options) as alone:
            alone.run(*WAYS.values())
        with engine(folder, logs / "first.log", node=node.address, **options) as first:
            first.run(*THEIRS)
        for way, own in WAYS.items():
            told = {"node": node.address, "kernels": way, **options}
            with engine(folder, logs / f"{way}.log", **told) as one:
                loaded[way] = one.run(*THEIRS)
                one.run(own)
                moved[way] = one.moved()
        with engine(folder, logs / "last.log", node=node.address, **options) as last:
            after = last.run(*THEIRS, *WAYS.values())
            yield Seen(loaded, moved, after, Pool(node), Pool(other))


@pytest.mark.parametrize("way", WAYS)
def test_blocks_went_by_the_kernels_and_by_this_way_alone(seen: Seen, way: str) -> None:
    assert set(seen.moved[way]) == {f"{OWNER[way]}.gathered", f"{OWNER[way]}.scattered"}


@pytest.mark.parametrize("way", WAYS)
def test_what_they_load_is_what_was_stored_to_the_bit(seen: Seen, way: str) -> None:
    assert seen.loaded[way].cached == [whole_blocks(len(one)) for one in THEIRS]
    assert seen.loaded[way].outputs == seen.after.outputs[: len(THEIRS)]


@pytest.mark.parametrize("way", WAYS)
def test_what_they_store_is_what_others_would_have_stored_to_the_bit(seen: Seen, way: str) -> None:
    found = seen.after.outputs[len(THEIRS) + list(WAYS).index(way)]
    assert found.cached == whole_blocks(len(WAYS[way]))
    for group in range(len(seen.pool.spec.groups)):
        stored = seen.pool.get(WAYS[way], group)
        assert len(stored) == found.cached // BLOCK
        assert stored == seen.apart.get(WAYS[way], group)
