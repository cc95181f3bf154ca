"""Shapes by published configurations are those of the presets, and of the models' cards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.core.model_shape import DEEPSEEK_V3, LLAMA3_8B, QWEN25_7B, ModelShape
from kvstore.core.published import shape_of
from kvstore.errors import Invalid

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN: dict[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "torch_dtype": "bfloat16",
    "vocab_size": 152064,
}
DEEPSEEK: dict[str, Any] = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
}
DEEPSEEK_LITE: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "vocab_size": 102400,
}
MIXTRAL: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN3_MOE: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("config", "preset"),
    [(LLAMA, LLAMA3_8B), (QWEN, QWEN25_7B), (DEEPSEEK, DEEPSEEK_V3)],
    ids=["llama", "qwen", "deepseek"],
)
def test_a_published_configuration_is_the_preset(config: Any, preset: ModelShape) -> None:
    assert shape_of(preset.name, config) == preset


@pytest.mark.parametrize(
    ("config", "all_of_them", "active"),
    [(MIXTRAL, 46.7e9, 12.9e9), (QWEN3_MOE, 30.5e9, 3.3e9)],
    ids=["mixtral", "qwen3-moe"],
)
def test_a_model_with_experts_has_the_weights_of_its_card(
    config: Any, all_of_them: float, active: float
) -> None:
    shape = shape_of("?", config)
    assert shape.parameters == pytest.approx(all_of_them, rel=0.005)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)


def test_queries_that_are_of_full_rank_have_a_projection_of_their_own_and_kv_is_the_same() -> None:
    shape = shape_of("DeepSeek-V2-Lite", DEEPSEEK_LITE)
    assert shape.parameters == pytest.approx(15.7e9, rel=0.005)
    assert shape.active_parameters - 102_400 * 2048 == pytest.approx(2.4e9, rel=0.03)
    assert shape.kv_bytes_per_token == 27 * (512 + 64) * 2


def test_the_language_model_of_one_that_also_sees_is_what_counts() -> None:
    config = {"vision_config": {"hidden_size": 1}, "text_config": LLAMA, "hidden_size": 1}
    assert shape_of("Meta-Llama-3-8B", config) == LLAMA3_8B


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"torch_dtype": "float32"}, 4.0),
        ({"torch_dtype": None, "dtype": "float16"}, 2.0),
        ({"quantization_config": {"quant_method": "fp8"}}, 1.0),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 0.5),
        ({"tie_word_embeddings": True}, 2.0),
    ],
)
def test_weights_have_the_bytes_that_they_lie_in_memory_with(changes: Any, size: float) -> None:
    tied = "tie_word_embeddings" in changes
    expected = replace(LLAMA3_8B, parameter_bytes=size, tied=tied)
    assert shape_of(LLAMA3_8B.name, LLAMA | changes) == expected


GEMMA: dict[str, Any] = {
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "torch_dtype": "bfloat16",
    "vocab_size": 256000,
}


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        (GEMMA, True),
        (GEMMA | {"tie_word_embeddings": False}, False),
        (GEMMA | {"tie_word_embeddings": None}, True),
        ({"model_type": "gemma3", "text_config": GEMMA | {"model_type": "gemma3_text"}}, True),
        (GEMMA | {"model_type": "cohere2"}, True),
        (LLAMA | {"model_type": "llama", "tie_word_embeddings": None}, False),
        ({"text_config": QWEN, "tie_word_embeddings": True}, True),
    ],
)
def test_words_are_tied_as_is_written_or_else_as_the_code_of_its_kind_does(
    config: Any, tied: bool
) -> None:
    assert shape_of("?", config).tied == tied


def test_a_gemma_that_leaves_it_to_the_code_whether_words_are_tied_has_its_card_s_weights() -> None:
    assert shape_of("gemma-2b", GEMMA).parameters == pytest.approx(2.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_key_value_heads": 5}, "kv_heads"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types has 'linear"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"text_config": "llama"}, "text_config is 'llama', where an object"),
        ({"torch_dtype": "int8"}, "torch_dtype is int8"),
        ({"quantization_config": {"quant_method": "x", "bits": 3}}, "has 3 bits by 'x'"),
        ({"quantization_config": {"quant_method": "x"}}, "has None bits by 'x'"),
        ({"kv_lora_rank": 512}, "q_lora_rank is None"),
        ({"kv_lora_rank": 512, "q_lora_rank": "x"}, "q_lora_rank is 'x'"),
        ({"num_experts": 8}, "num_experts_per_tok is None"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"interleave_moe_layer_step": 2}, "interleave_moe_layer_step is 2"),  # Llama 4 Maverick
        ({"full_attention_interval": 4}, "full_attention_interval is 4"),  # Qwen3-Next
        ({"linear_num_value_heads": 32}, "linear_num_value_heads is 32"),
        ({"model_type": "llama4_text"}, "model_type is 'llama4_text'"),
        ({"model_type": "llama4", "text_config": LLAMA}, "model_type is 'llama4'"),
    ],
)
def test_what_is_missing_or_not_understood_is_refused_by_name(changes: Any, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        shape_of("?", LLAMA | changes)


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.just(1 << 80),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(), st.just([])), max_size=2),
    st.just({"bits": []}),
    st.just({1: 2}),
)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.sampled_from([LLAMA, DEEPSEEK, QWEN3_MOE]), st.data())
def test_whatever_stands_there_it_is_a_shape_or_refused(config: Any, data: st.DataObject) -> None:
    """A server is not to end by it."""
    keys = [
        *config,
        "text_config",
        "quantization_config",
        "layer_types",
        "mlp_only_layers",
        "dtype",
        "model_type",
        "tie_word_embeddings",
    ]
    key = data.draw(st.sampled_from(keys))
    with suppress(Invalid):
        shape_of("?", config | {key: data.draw(NONSENSE)})
