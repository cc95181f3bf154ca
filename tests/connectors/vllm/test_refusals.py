"""What cannot be kept right is refused by name as the engine starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.engine.connectors.vllm.settings import Settings
from tests.connectors.vllm.engine import EngineFailed, engine
from tests.nodes import NodeProcess


@pytest.mark.parametrize(
    ("extra", "options", "named"),
    [
        ({"block_token": 64}, {}, "kv_connector_extra_config.block_token is unknown"),
        ({"block_tokens": 48}, {}, "block_tokens 48"),
        ({}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype 'fp8'"),
    ],
    ids=["unknown key", "blocks that do not fit", "quantised KV"],
)
def test_an_engine_does_not_start_with(
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
    extra: dict[str, Any],
    options: dict[str, Any],
    named: str,
) -> None:
    with (
        pytest.raises(EngineFailed) as failed,
        engine(model("llama"), tmp_path / "e.log", node=node.address, extra=extra, **options),
    ):
        pass
    assert named in str(failed.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nodes", "127.0.0.1:7410", "nodes is unknown; known are node, block_tokens"),
        ("block_tokens", "64", "block_tokens is '64'; int is wanted"),
        ("block_tokens", True, "block_tokens is True; int is wanted"),
        ("block_tokens", 0, "block_tokens is 0; 1 to"),
        ("reuse", "sometimes", "reuse is 'sometimes'; it may be priced or always"),
        ("audit_rate", 1.5, "audit_rate is 1.5; 0.0 to 1.0"),
        ("deadline_ms", 0, "deadline_ms is 0; 1 to"),
    ],
)
def test_a_setting_that_is_not_right_is_named_with_its_value(
    key: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        Settings.of({key: value})
    assert said in str(caught.value)
