"""vLLM and its node both start again: what the first run stored is on SSD, and is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.connectors.vllm.engine import engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.test_reuse import whole_blocks
from tests.nodes import eventually, running

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
