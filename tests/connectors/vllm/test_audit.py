"""KV with a valid hash can still be wrong KV. What the engine computes is what it is held against.

A hit drawn at random is computed and compared (the audit); so are the first hits of an origin that
this engine has not met (the self-test), before any of its blocks is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.connectors.vllm.engine import Prompt, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess, running

LENGTH = 3 * 64 + 10
AUDIT = {"audit_rate": 0.2, "audit_seed": 7}
HITS_MAX = 25  # within which a wrong namespace is found at that rate, in 99.6 of 100 seeds


def scaled(data: bytes, by: float) -> bytes:
    """A block of float32 values, each of them so much larger."""
    return (np.frombuffer(data, dtype=np.float32) * np.float32(by)).tobytes()


def test_kv_that_is_one_percent_too_large_is_found_and_nobody_uses_it_any_more(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    prompts = [prompt(100 + index, LENGTH) for index in range(HITS_MAX)]
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(*prompts, tokens=1)
    pool = Pool(node)
    for tokens in prompts:
        for index, data in enumerate(pool.get(tokens)):
            pool.replace(tokens, 0, index, scaled(data, 1.01))
    with engine(model("llama"), tmp_path / "second.log", node=node.address, extra=AUDIT) as second:
        cached = [second.run(tokens, tokens=1).cached[0] for tokens in prompts]
        figures = second.figures()
        assert "is WRONG" in second.log and "1.0100 x" in second.log
    assert figures["alarms"] == 1
    found_at = cached.index(0)
    assert found_at < HITS_MAX and not any(cached[found_at:]), "a hit after the alarm"
    assert not any(pool.has(prompts[0])), "another engine could still have it"
    assert "1.0100 x" in pool.quarantined


def test_hits_that_were_drawn_and_computed_say_what_the_others_saved(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    prompts = [prompt(150 + index, LENGTH) for index in range(12)]
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(*prompts, tokens=1)
    extra = {"audit_rate": 0.5, "audit_seed": 3}
    with engine(model("llama"), tmp_path / "second.log", node=node.address, extra=extra) as second:
        cached = [second.run(tokens, tokens=2).cached[0] for tokens in prompts]
        figures = second.figures()
    assert figures["audits"] == cached.count(0) and 0 < cached.count(0) < len(prompts)
    assert figures["ttft_saved_seconds"] and figures["gpu_saved_seconds"]


def test_blocks_of_an_unknown_origin_are_tested_before_one_is_loaded(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    prompts = [prompt(200 + index, LENGTH) for index in range(4)]
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(*prompts, tokens=1)
    with engine(
        model("llama"), tmp_path / "second.log", node=node.address, extra={"self_test": True}
    ) as second:
        cached = [second.run(tokens, tokens=1).cached[0] for tokens in prompts]
        figures = second.figures()
    assert cached == [0, 0, 192, 192]
    assert figures["self_tests"] == 2 and figures["alarms"] == 0


def test_a_misread_layout_is_found_before_any_request_uses_loaded_kv(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    prompts = [prompt(300 + index, LENGTH) for index in range(3)]
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(*prompts, tokens=1)
        alone = first.run(*prompts)
    pool = Pool(node)
    for tokens in prompts:  # as a writer would that takes heads and tokens for each other
        for index, data in enumerate(pool.get(tokens)):
            values = np.frombuffer(data, dtype=np.float32).reshape(4, 4, 64, -1)
            pool.replace(tokens, 0, index, values.transpose(0, 2, 1, 3).tobytes())
    with engine(
        model("llama"), tmp_path / "second.log", node=node.address, extra={"self_test": True}
    ) as second:
        found = second.run(*prompts)
        figures = second.figures()
        assert "is misread" in second.log
    assert found.cached == [0, 0, 0]
    assert found.tokens == alone.tokens
    assert figures["alarms"] == 1 and figures["hit_tokens"] == 0


@pytest.mark.parametrize("chunk", [4096, 64], ids=["whole", "chunked"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_rounding_alarms_nobody(
    model: Callable[[str], Path], tmp_path: Path, ranks: int, chunk: int
) -> None:
    """250 clean bf16 hits of each kind, all of them audited: stored whole by one rank."""
    prompts = [prompt(1_000 + index, 64 + 10 + index % 150) for index in range(250)]
    options = {"dtype": "bfloat16", "enable_prefix_caching": False}
    with running(dram="256MiB", slab="8MiB") as node:
        first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
        with engine(model("llama"), first_log, node=node.address, **options) as first:
            first.run(*prompts, tokens=1, together=True)
        options |= {"max_num_batched_tokens": chunk, "max_num_seqs": 8}
        environment = {}
        if ranks > 1:
            options |= {"tensor_parallel_size": ranks}
            environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        with engine(
            model("llama"),
            second_log,
            node=node.address,
            extra={"audit_rate": 1.0},
            environment=environment,
            **options,
        ) as second:
            second.run(*(Prompt(one) for one in prompts), tokens=1, together=True)
            figures = second.figures()
    assert figures["audits"] == len(prompts)
    assert figures["alarms"] == 0
