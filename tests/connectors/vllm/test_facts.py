"""What makes two engines' KV different, though they have the same weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.engine.connectors.vllm.facts import rope_of

LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 4_096,
    "short_factor": [1.0, 1.1],
    "long_factor": [1.0, 9.5],
}


def test_an_engine_of_longer_prompts_has_other_keys_where_vllm_takes_other_factors() -> None:
    text = SimpleNamespace(rope_parameters=LONG)
    assert rope_of(text, 4_096) == rope_of(text, 512)
    assert rope_of(text, 4_097) == rope_of(text, 131_072)
    assert rope_of(text, 4_096) != rope_of(text, 4_097)


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4_096},
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}},
    ],
)
def test_the_length_of_prompts_parts_no_other_engines(rope: dict[str, Any]) -> None:
    text = SimpleNamespace(rope_parameters=rope)
    assert rope_of(text, 512) == rope_of(text, 131_072)
