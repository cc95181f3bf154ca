"""SGLang's own host pools on the CPU, backends made by its own factory, and real nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.sglang.absent import make_up_torchvision
from tests.nodes import home, node, shared_node

make_up_torchvision()

from tests.connectors.sglang.engine import Engine  # noqa: E402

__all__ = ["home", "node", "shared_node"]


@pytest.fixture(autouse=True)
def process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine's process remembers, each test begins without; what a test writes was there
    before its process."""
    monkeypatch.setattr("kvstore.engine.connectors.sglang.storage._cleared", set())
    monkeypatch.setattr("kvstore.engine.connectors.sglang.facts._began", lambda: float("inf"))


@pytest.fixture
def engine_of(shared_node: Any) -> Iterator[Callable[..., Engine]]:
    """Makes ranks of an engine at the module's node; their backends are closed after the test."""
    made: list[Engine] = []

    def make(pool: Any, **options: Any) -> Engine:
        options.setdefault("moonpool", shared_node.address)
        made.append(Engine(pool, **options))
        return made[-1]

    yield make
    for one in made:
        one.storage.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,  # else one token repeats whatever the KV
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
