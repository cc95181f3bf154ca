"""vLLM's MultiConnector asks several connectors, of which this is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.server import Server, servers
from tests.nodes import NodeProcess

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
