"""What makes two engines' KV different, though they have the same weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.engine.connectors.vllm.facts import rope_of, tuning_of

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


def llama4(length: int, generation: dict[str, Any], override: dict[str, Any]) -> Any:
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(model_type="llama4_text"),
        max_model_len=length,
        try_get_generation_config=lambda: dict(generation),
        override_generation_config=override,
    )


def test_an_engine_of_longer_prompts_has_other_kv_of_llama_4_unless_it_is_told() -> None:
    tuned, not_tuned = {"attn_temperature_tuning": True}, {"attn_temperature_tuning": False}
    short, long = tuning_of(llama4(32_768, {}, {})), tuning_of(llama4(32_769, {}, {}))
    assert short != long
    assert tuning_of(llama4(512, tuned, {})) == tuning_of(llama4(32_769, {}, tuned)) == long
    assert tuning_of(llama4(131_072, tuned, not_tuned)) == short


def test_other_models_are_named_as_they_were() -> None:
    model = llama4(131_072, {}, {})
    model.hf_text_config.model_type = "llama"
    assert tuning_of(model) == {}
