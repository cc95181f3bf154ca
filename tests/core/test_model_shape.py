"""Shapes have the parameters and the KV that their models' cards say, and work that adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.model_shape import (
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    QWEN3_8B,
    QWEN3_32B,
    QWEN25_7B,
    QWEN25_32B,
    QWEN25_72B,
    SHAPES,
    ModelShape,
)
from kvstore.errors import Invalid

PUBLISHED = {  # billions, of the models' cards and reports
    LLAMA3_8B: 8.03,
    LLAMA3_70B: 70.6,
    QWEN25_7B: 7.61,
    QWEN25_32B: 32.5,
    QWEN25_72B: 72.7,
    QWEN3_8B: 8.2,
    QWEN3_32B: 32.8,
    DEEPSEEK_V3: 671.0,
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_model_has_as_many_parameters_as_its_card_says(shape: ModelShape) -> None:
    assert shape.parameters == pytest.approx(PUBLISHED[shape] * 1e9, rel=0.02)


def test_a_token_takes_few_experts_and_all_of_a_dense_model() -> None:
    assert DEEPSEEK_V3.active_parameters == pytest.approx(37e9, rel=0.02)
    assert all(one.active_parameters == one.parameters for one in SHAPES if not one.experts)


def test_a_token_of_context_takes_the_known_bytes() -> None:
    assert LLAMA3_8B.kv_bytes_per_token == 128 * 1024
    assert LLAMA3_70B.kv_bytes_per_token == 320 * 1024
    assert QWEN25_7B.kv_bytes_per_token == 56 * 1024
    assert DEEPSEEK_V3.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert replace(LLAMA3_8B, kv_item_bytes=1).kv_bytes_per_token == 64 * 1024


def test_heads_go_round_over_gpus_until_there_is_one_each_and_a_latent_never() -> None:
    assert [LLAMA3_70B.kv_shards(gpus) for gpus in (1, 4, 8, 16)] == [1, 4, 8, 8]
    assert DEEPSEEK_V3.kv_shards(8) == 1


def test_a_prefill_is_two_flops_a_weight_and_token_while_prompts_are_short() -> None:
    for shape in SHAPES:
        flops = shape.prefill_flops(1000) - shape.prefill_flops(0)
        assert flops == pytest.approx(2000 * shape.layer_parameters, rel=0.05)
    pairs = LLAMA3_70B.prefill_flops(2048, 6144) - 2 * 2048 * LLAMA3_70B.layer_parameters
    assert pairs == pytest.approx(2 * 80 * 8192 * 2048 * (2048 + 2 * 6144), rel=1e-2)


@given(st.sampled_from(SHAPES), st.integers(0, 10**5), st.integers(0, 10**5), st.floats(0, 1))
def test_a_prompt_in_two_pieces_takes_the_same_flops_and_one_head_more(
    shape: ModelShape, new: int, prefix: int, cut: float
) -> None:
    first = int(new * cut)
    apart = shape.prefill_flops(first, prefix) + shape.prefill_flops(new - first, prefix + first)
    assert apart == shape.prefill_flops(new, prefix) + shape.prefill_flops(0)


def test_a_step_reads_the_weights_once_and_kv_for_each_sequence() -> None:
    weights = LLAMA3_8B.parameters * 2 - 128_256 * 4096 * 2
    assert LLAMA3_8B.decode_bytes(1, 0) == weights
    assert LLAMA3_8B.decode_bytes(64, 1000) == weights + 1000 * 128 * 1024


def test_more_sequences_touch_more_experts_up_to_all() -> None:
    alone = DEEPSEEK_V3.active_parameters - 129_280 * 7168
    assert DEEPSEEK_V3.decode_bytes(1, 0) == pytest.approx(alone)
    read = [DEEPSEEK_V3.decode_bytes(batch, 0) for batch in (1, 2, 8, 64, 512, 100_000)]
    assert read == sorted(read) and read[1] < 2 * read[0]
    assert read[-1] == pytest.approx(DEEPSEEK_V3.parameters - 129_280 * 7168)


def test_one_matrix_less_where_embedding_and_head_are_tied() -> None:
    tied = replace(LLAMA3_8B, tied=True)
    assert LLAMA3_8B.parameters - tied.parameters == 128_256 * 4096
    assert LLAMA3_8B.decode_bytes(1, 0) == tied.decode_bytes(1, 0), "the head is read all the same"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, 0) for name in ("layers", "hidden", "heads", "head_dim", "intermediate")],
        *[("kv_heads", 3), ("experts_active", 1), ("dense_layers", 33), ("vocabulary", -1)],
        *[("parameter_bytes", 0.0), ("parameter_bytes", math.inf), ("kv_item_bytes", math.nan)],
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(Invalid, match=rf"ModelShape\.{field} cannot be"):
        replace(LLAMA3_8B, **{field: value})


def test_a_mixture_needs_experts_that_are_taken_and_have_a_width() -> None:
    for field in ("experts_active", "expert_intermediate"):
        with pytest.raises(Invalid, match=field):
            replace(DEEPSEEK_V3, **{field: 0})
