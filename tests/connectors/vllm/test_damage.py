"""A stored block with a flipped bit is a miss: recomputed, and published anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess, eventually

BLOCK, BLOCKS = 64, 5
HYBRID = {"disable_hybrid_kv_cache_manager": False}


@pytest.mark.parametrize(
    ("name", "damaged"), [("llama", {0: (0, 2, 4)}), ("gemma3", {0: (4,), 1: (4, 3)})]
)
def test_a_flipped_bit_costs_a_recompute_and_is_mended(
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    damaged: dict[int, tuple[int, ...]],
) -> None:
    """One prompt for each damaged block, so that in each case the others are there."""
    folder, options = model(name), HYBRID if name == "gemma3" else {}
    cases = [(group, index) for group, blocks in damaged.items() for index in blocks]
    prompts = [prompt(140 + n, BLOCKS * BLOCK + 10) for n in range(len(cases))]
    pool = Pool(node)
    with engine(folder, tmp_path / "first.log", node=node.address, **options) as first:
        cold = first.run(*prompts)
        assert cold.cached == [0] * len(prompts)
        first.forget()
        for tokens, (group, index), wanted in zip(prompts, cases, cold.outputs, strict=True):
            eventually(lambda tokens=tokens, group=group: all(pool.has(tokens, group)))
            pool.flip(tokens, group, index)
            before = pool.counter("damaged_blocks")
            (found,) = first.run(tokens).outputs
            assert pool.counter("damaged_blocks") == before + 1, (group, index)
            assert found.tokens == wanted.tokens
            assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
            assert found.finish == "length"
            eventually(lambda tokens=tokens, group=group: all(pool.has(tokens, group)))
    with engine(folder, tmp_path / "second.log", node=node.address, **options) as second:
        mended = second.run(*prompts)
        assert mended.cached == [BLOCKS * BLOCK] * len(prompts)
        assert mended.tokens == cold.tokens
