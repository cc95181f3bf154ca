"""vLLM and its node both start again: what the first run stored is on SSD, and is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.connectors.vllm.engine import engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.test_reuse import whole_blocks
from tests.nodes import NodeProcess, eventually, running

PROMPTS = [prompt(21, 3 * 64 + 10), prompt(22, 6 * 64 + 1)]


def test_prefixes_outlive_a_killed_node_and_its_engine(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model("llama")
    with engine(folder, tmp_path / "alone.log", keep_prefixes=True) as alone:
        cold, local = alone.run(*PROMPTS), alone.run(*PROMPTS)
    with running(dram="256MiB", slab="8MiB", ssd="256MiB") as node:
        with engine(folder, tmp_path / "first.log", node=node.address) as first:
            stored = first.run(*PROMPTS)
            counters = node.caller().counters
            eventually(lambda: counters()["stored_blocks"] == counters()["sealed_blocks"] > 0)
        node.kill()
        node.start()
        with engine(folder, tmp_path / "second.log", node=node.address) as second:
            loaded = second.run(*PROMPTS)
        assert node.caller().counters()["promoted_blocks"] > 0, "what was loaded came from SSD"
    assert stored.outputs == cold.outputs
    assert loaded.cached == [whole_blocks(len(one)) for one in PROMPTS]
    assert loaded.tokens == cold.tokens
    assert [one.logprobs for one in loaded.outputs] == [one.logprobs for one in local.outputs]


def test_kv_of_before_a_reset_is_not_loaded_and_what_is_stored_since_is_this_engines_alone(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    """vLLM has caches reset where weights change in place, of which nothing else tells."""
    before, since = PROMPTS
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(before)
        first.forget()
        assert first.run(before).cached == [whole_blocks(len(before))]
        first.reset()
        assert first.run(before, since).cached == [0, 0]
        first.forget()
        again = first.run(before, since)
        assert again.cached == [whole_blocks(len(one)) for one in PROMPTS]
    with engine(model("llama"), tmp_path / "second.log", node=node.address) as second:
        assert second.run(before, since).cached == [whole_blocks(len(before)), 0]
