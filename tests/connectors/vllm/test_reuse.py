"""One vLLM stores, another loads: the same tokens, from KV that was computed once.

Without a connector, vLLM's own prefix cache already changes a product's number of rows, and by it
the last bits of a float. So there are two references, both of vLLM alone: the same prompt computed
whole, which may differ by rounding, and a hit of the same length in vLLM's own prefix cache, which
may not differ at all. Prompts are 1 to 16 tokens longer than whole blocks of 64, so that a local
hit (in vLLM's blocks of 32, or 16 with MLA) and the pool's are of the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import Engine, Round, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import running

BLOCK = 64
PROMPTS = [prompt(1, 3 * BLOCK + 10), prompt(2, 4 * BLOCK + 16), prompt(3, 6 * BLOCK + 1)]
MODELS = {
    "llama": {},
    "qwen3": {},
    "gemma3": {"disable_hybrid_kv_cache_manager": False},
    # Named, as a processor with AMX would choose another; it has a local hit only if it must.
    "deepseek_v2": {"dtype": "bfloat16", "attention_config": {"backend": "CPU_MLA"}},
}


def whole_blocks(tokens: int) -> int:
    """Tokens of the full blocks below a prompt's last token, which is always computed."""
    return (tokens - 1) // BLOCK * BLOCK


@dataclass(frozen=True)
class Seen:
    """What each of three engines, one after another, made of the prompts."""

    cold: Round  # vLLM alone
    local: Round  # vLLM alone, a second time
    stored: Round  # with an empty pool
    loaded: Round  # in another process, with what the one before it stored
    engine: Engine  # this last one
    pool: Pool


@pytest.fixture(scope="module", params=MODELS)
def seen(
    request: pytest.FixtureRequest,
    model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Seen]:
    folder, options = model(request.param), MODELS[request.param]
    logs = tmp_path_factory.mktemp("reuse")
    with engine(folder, logs / "alone.log", keep_prefixes=True, **options) as alone:
        cold, local = alone.run(*PROMPTS), alone.run(*PROMPTS)
    with running(dram="256MiB", slab="8MiB") as node:
        with engine(folder, logs / "first.log", node=node.address, **options) as first:
            stored = first.run(*PROMPTS)
        with engine(folder, logs / "second.log", node=node.address, **options) as second:
            loaded = second.run(*PROMPTS)
            yield Seen(cold, local, stored, loaded, second, Pool(node))


def test_every_whole_block_is_a_hit_and_nothing_else(seen: Seen) -> None:
    lengths = [len(one) for one in PROMPTS]
    assert seen.stored.cached == [0] * len(PROMPTS)
    assert seen.stored.external == (sum(lengths), 0)
    assert seen.loaded.cached == [whole_blocks(one) for one in lengths]
    assert seen.loaded.external == (sum(lengths), sum(seen.loaded.cached))


def test_an_empty_pool_changes_no_bit(seen: Seen) -> None:
    assert seen.stored.outputs == seen.cold.outputs


def test_what_is_loaded_is_a_local_hit_to_the_bit(seen: Seen) -> None:
    assert seen.local.cached == seen.loaded.cached, "the lengths were chosen so"
    assert seen.loaded.outputs == seen.local.outputs


def test_what_is_loaded_gives_the_tokens_of_no_connector(
    seen: Seen, request: pytest.FixtureRequest
) -> None:
    if "deepseek_v2" in request.node.name:
        pytest.skip("vLLM's own local hit does not, on its CPU backend for MLA")
    assert seen.loaded.tokens == seen.cold.tokens
    for loaded, cold in zip(seen.loaded.outputs, seen.cold.outputs, strict=True):
        assert loaded.logprobs == pytest.approx(cold.logprobs, abs=1e-4)


def test_every_block_of_every_group_matters(seen: Seen) -> None:
    """The control: KV of another prompt under this one's hash, bytes and hash in order, shows."""
    mine, other, unchanged = PROMPTS[0], PROMPTS[1], seen.loaded.outputs[0]
    differ = 0
    for group, facts in enumerate(seen.pool.spec.groups):
        held, others = seen.pool.get(mine, group), seen.pool.get(other, group)
        end = whole_blocks(len(mine))
        first = max(0, end - facts.window_tokens + 1) // BLOCK if facts.window_tokens else 0
        for index in range(first, end // BLOCK):
            seen.pool.replace(mine, group, index, others[index])
            seen.engine.forget()
            (found,) = seen.engine.run(mine).outputs
            seen.pool.replace(mine, group, index, held[index])
            assert found.cached == unchanged.cached
            assert found.logprobs != pytest.approx(unchanged.logprobs, abs=1e-2), (group, index)
            differ += found.tokens != unchanged.tokens
    assert differ, "no token changed"
    seen.engine.forget()
    assert seen.engine.run(mine).outputs == [unchanged], "all is as it was"
