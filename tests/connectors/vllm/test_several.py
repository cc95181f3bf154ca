"""vLLM's MultiConnector asks several connectors, of which this is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm import shaking
from tests.connectors.vllm.engine import engine, ours, several
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.server import Server, servers
from tests.nodes import NodeProcess, running

PROMPTS = [prompt(171, 200), prompt(172, 300)]


def test_a_server_with_another_connector_beside_ours_counts_ours_and_serves_on(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    """Its front end makes figures of each connector, of which it knows the name alone."""
    folder, found = model("llama"), []
    for run in range(2):
        example = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / f"files{run}")},
        }
        server = Server(folder, tmp_path / f"{run}.log", node=node.address, beside=example)
        with servers(server):
            found.append([server.complete(tokens, 8)["tokens"] for tokens in PROMPTS])
            metrics = server.metrics()
    assert found[0] == found[1]
    whole = sum((len(tokens) - 1) // 64 * 64 for tokens in PROMPTS)
    assert metrics["moonpool:hit_tokens_total"] == metrics["moonpool:loaded_tokens_total"] == whole


TWO_RANKS = {
    "tensor_parallel_size": 2,
    "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}


@pytest.mark.parametrize(
    ("first", "options"), [(True, {}), (False, {}), (False, TWO_RANKS)], ids=["1", "2", "ranks"]
)
def test_another_connector_may_say_something_at_the_start_as_ours_does(
    model: Callable[[str], Path],
    node: NodeProcess,
    tmp_path: Path,
    first: bool,
    options: dict[str, Any],
) -> None:
    """MultiConnector hands what one worker's connector says to every other: ours says it later,
    with the first step, and what that computes is stored as well."""
    both = [ours(node.address), shaking.CONFIG]
    config = several(*both if first else reversed(both))
    whole = [(len(tokens) - 1) // 64 * 64 for tokens in PROMPTS]
    with engine(model("llama"), tmp_path / "e.log", kv_transfer_config=config, **options) as served:
        stored = served.run(*PROMPTS)
        served.forget()
        loaded = served.run(*PROMPTS)
        figures = served.figures()
    assert (stored.cached, loaded.cached) == ([0, 0], whole)
    assert loaded.tokens == stored.tokens
    assert figures["miss.unheard"] == 1 and figures["hit_tokens"] == sum(whole)


def test_a_policy_that_counts_for_nothing_is_told_of_at_the_start(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    """Each of several has one, and that of MultiConnector is vLLM's."""
    config = several(ours(node.address, policy="recompute"), policy="fail")
    with engine(model("llama"), tmp_path / "e.log", kv_transfer_config=config) as served:
        assert served.log.count("kv_load_failure_policy is 'fail': a request") == 1


def test_ours_may_stand_there_twice(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    """Each with a pool of its own."""
    with running() as other:
        both = ours(node.address), ours(other.address, block_tokens=32)
        config = several(*both)
        with engine(model("llama"), tmp_path / "e.log", kv_transfer_config=config) as served:
            stored = served.run(*PROMPTS)
            served.forget()
            loaded = served.run(*PROMPTS)
    whole = [(len(tokens) - 1) // 64 * 64 for tokens in PROMPTS]
    assert stored.cached == [0, 0] and loaded.tokens == stored.tokens
    assert all(one >= least for one, least in zip(loaded.cached, whole, strict=True))
