"""What ranks of one engine store between them, an engine with another number of ranks loads.

two ranks store A --> one rank loads A, stores B --> two ranks load A and B
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm.engine import Round, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import running

BLOCK = 64
A = [prompt(150 + n, n * BLOCK + 10) for n in (2, 5)]
B = [prompt(160 + n, n * BLOCK + 10) for n in (3, 4)]
ONE: dict[str, Any] = {}
TWO: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}


@pytest.fixture(scope="module")
def seen(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Round | int]:
    """What each engine made of the prompts, by how many ranks stored them and how many ran them."""
    folder, logs = model("llama"), tmp_path_factory.mktemp("tp")
    found: dict[str, Any] = {}
    with engine(folder, logs / "alone.log") as alone:
        found["A alone"], found["B alone"] = alone.run(*A), alone.run(*B)
    with running(dram="64MiB", slab="8MiB") as node:
        pool = Pool(node)
        with engine(folder, logs / "first.log", node=node.address, **TWO) as first:
            found["A by 2"] = first.run(*A)
        found["blocks"] = pool.blocks
        with engine(folder, logs / "second.log", node=node.address, **ONE) as second:
            found["A 2 to 1"], found["B by 1"] = second.run(*A), second.run(*B)
        with engine(folder, logs / "third.log", node=node.address, **TWO) as third:
            found["A 2 to 2"], found["B 1 to 2"] = third.run(*A), third.run(*B)
    return found


def test_two_ranks_store_each_block_once(seen: dict[str, Any]) -> None:
    assert seen["blocks"] == 2 + 5


@pytest.mark.parametrize("which", ["A by 2", "B by 1", "A 2 to 1", "A 2 to 2", "B 1 to 2"])
def test_the_outputs_are_those_of_one_rank_alone(seen: dict[str, Any], which: str) -> None:
    prompts, alone, found = A if which[0] == "A" else B, seen[f"{which[0]} alone"], seen[which]
    whole = [(len(one) - 1) // BLOCK * BLOCK for one in prompts]
    assert found.cached == (whole if " to " in which else [0, 0])
    assert found.external[1] == sum(found.cached)
    assert found.tokens == alone.tokens
    for one, other in zip(found.outputs, alone.outputs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
