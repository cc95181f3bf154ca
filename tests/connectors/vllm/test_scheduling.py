"""Prefill in chunks, and requests that vLLM preempts and resumes: the tokens are vLLM's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm.engine import Engine, Round, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess

BLOCK = 64
HYBRID = {"disable_hybrid_kv_cache_manager": False}
CHUNKED = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
# Too few pages for four requests of 180 tokens, in blocks of 32; Gemma has two groups of them.
SCARCE = {**CHUNKED, "max_model_len": 256}
PAGES = {"llama": 14, "gemma3": 20}


def close_to(found: Round, wanted: Round) -> None:
    """The same tokens. Batches are not composed alike, so the last bits may differ."""
    assert found.tokens == wanted.tokens
    for one, other in zip(found.outputs, wanted.outputs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.fixture(params=PAGES)
def pair(
    request: pytest.FixtureRequest,
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
) -> Callable[..., Any]:
    """Runs prompts in vLLM alone, then gives an engine with the pool and what was seen."""

    @contextmanager
    def made(*prompts: list[int], tokens: int, **options: Any) -> Iterator[tuple[Engine, Round]]:
        options |= HYBRID if request.param == "gemma3" else {}
        if "max_model_len" in options:
            options["num_gpu_blocks_override"] = PAGES[request.param]
        folder = model(request.param)
        with engine(folder, tmp_path / "alone.log", **options) as alone:
            wanted = alone.run(*prompts, tokens=tokens, together=True)
        with engine(folder, tmp_path / "pool.log", node=node.address, **options) as served:
            yield served, wanted

    return made


def test_a_prefill_in_chunks_is_stored_and_loaded(pair: Callable[..., Any]) -> None:
    prompts = [prompt(100 + n, n * BLOCK + 20) for n in (2, 3, 4, 5)]
    with pair(*prompts, tokens=8, **CHUNKED) as (served, wanted):
        stored = served.run(*prompts, together=True)
        assert stored.cached == [0, 0, 0, 0]
        close_to(stored, wanted)
        served.forget()
        loaded = served.run(*prompts, together=True)
        assert loaded.cached == [n * BLOCK for n in (2, 3, 4, 5)]
        close_to(loaded, wanted)


def test_a_preempted_request_resumes_from_the_pool(
    pair: Callable[..., Any], node: NodeProcess
) -> None:
    prompts = [prompt(110 + n, 60) for n in range(4)]
    pool = Pool(node)
    with pair(*prompts, tokens=120, **SCARCE) as (served, wanted):
        assert wanted.counted["num_preemptions"] > 0, "vLLM alone preempts none"
        ran = served.run(*prompts, tokens=120, together=True)
        assert ran.counted["num_preemptions"] > 0
        close_to(ran, wanted)
        # Nobody ran these prompts before, so what was opened was opened for those that resumed.
        assert pool.counter("open_hit_blocks") > 0
        served.forget()
        again = served.run(*prompts, tokens=120, together=True)
        close_to(again, wanted)
