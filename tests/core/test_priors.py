"""Priors land beside what was measured, and are monotonic in everything they are made from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.hardware import A100, GPUS, H100, L40S, SEEN, Gpu
from kvstore.core.model_shape import (
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    QWEN25_7B,
    SHAPES,
    ModelShape,
)
from kvstore.core.priors import BATCH_MET, decode_prior, kv_room, prefill_prior
from kvstore.errors import Invalid

shapes, gpus = st.sampled_from(SHAPES), st.sampled_from(GPUS)
degrees = st.sampled_from([1, 2, 4])  # that every preset can be split by


def test_llama_70b_on_8_a100_is_within_a_quarter_of_what_was_measured() -> None:
    prior = prefill_prior(LLAMA3_70B, A100, 8)
    for tokens in (512, 2048, 8192, 32_768, 131_072):
        measured = 0.02 + 1.12e-4 * tokens + 1.05e-9 * tokens**2
        assert prior.seconds(tokens, 0) == pytest.approx(measured, rel=0.25)
    assert 0.9 / 2 < prior.seconds(8192, 0) < 1.0 * 2


@given(shapes, gpus, degrees)
def test_one_sequence_is_decoded_at_the_speed_of_the_memory(
    shape: ModelShape, gpu: Gpu, degree: int
) -> None:
    step = decode_prior(shape, gpu, degree).seconds(1, 0)
    ideal = shape.decode_bytes(1, 0) / degree / gpu.memory_bytes_per_second
    assert ideal < step < 1.25 * ideal + 0.006, "its share of the peak, launches, all-reduces"


def test_a_decode_prior_meets_the_roofline_at_one_and_is_beside_it_up_to_a_few_hundred() -> None:
    for shape, worst in ((LLAMA3_70B, 2.0), (DEEPSEEK_V3, 2.6)):
        prior = decode_prior(shape, H100, 1)
        peak = H100.flops(shape.parameter_bytes) * SEEN.matmul
        for batch in (1, 4, 16, 64, 128, 256):
            read = shape.decode_bytes(batch, 0) / (H100.memory_bytes_per_second * SEEN.memory)
            multiply = 2 * batch * shape.active_parameters / peak
            ratio = prior.seconds(batch, 0) / (max(read, multiply) + SEEN.decode_seconds)
            assert 1 / worst < ratio < worst, f"{shape.name} at {batch}"


@given(shapes, gpus, degrees)
def test_faster_hardware_never_makes_a_prior_slower(
    shape: ModelShape, gpu: Gpu, degree: int
) -> None:
    prefill, decode = prefill_prior(shape, gpu, degree), decode_prior(shape, gpu, degree)
    for item in ("memory_bytes_per_second", "bf16_flops", "fp8_flops", "nvlink_bytes_per_second"):
        faster = replace(gpu, **{item: getattr(gpu, item) * 2})
        assert prefill_prior(shape, faster, degree).seconds(5000, 900) <= prefill.seconds(5000, 900)
        for batch in (1, BATCH_MET):  # beyond, the slope of the chord goes on, and may have grown
            after = decode_prior(shape, faster, degree).seconds(batch, 9000)
            assert after <= decode.seconds(batch, 9000) * (1 + 1e-9)


@given(gpus, degrees)
def test_a_larger_model_of_a_family_is_slower_and_leaves_less_room(gpu: Gpu, degree: int) -> None:
    small, large = prefill_prior(LLAMA3_8B, gpu, degree), prefill_prior(LLAMA3_70B, gpu, degree)
    assert small.a < large.a and small.b < large.b and small.c < large.c
    small_step, large_step = (decode_prior(one, gpu, degree) for one in (LLAMA3_8B, LLAMA3_70B))
    assert small_step.a < large_step.a and small_step.c < large_step.c
    assert kv_room(LLAMA3_8B, gpu, 8) > kv_room(LLAMA3_70B, gpu, 8)


@given(shapes, gpus, st.integers(32_768, 1 << 20), st.integers(0, 1 << 20))
def test_more_gpus_never_make_a_long_prompt_slower(
    shape: ModelShape, gpu: Gpu, new: int, prefix: int
) -> None:
    took = [prefill_prior(shape, gpu, degree).seconds(new, prefix) for degree in (1, 2, 4)]
    if shape.heads % 8 == 0:
        took.append(prefill_prior(shape, gpu, 8).seconds(new, prefix))
    assert took == sorted(took, reverse=True)


def test_links_decide_what_splitting_is_worth() -> None:
    slow = replace(H100, nvlink_bytes_per_second=0.0)
    assert prefill_prior(LLAMA3_70B, slow, 8).b > 1.5 * prefill_prior(LLAMA3_70B, H100, 8).b
    assert prefill_prior(LLAMA3_70B, slow, 1) == prefill_prior(LLAMA3_70B, H100, 1)


def test_each_all_reduce_takes_its_time_however_little_there_is_to_reduce() -> None:
    free = replace(SEEN, reduce_seconds=0.0)
    for prior in (prefill_prior, decode_prior):
        for degree, reduces in ((1, 0), (8, 2 * 80)):
            more = prior(LLAMA3_70B, A100, degree).a - prior(LLAMA3_70B, A100, degree, free).a
            assert more == pytest.approx(reduces * SEEN.reduce_seconds)


def test_kv_has_the_room_that_weights_leave() -> None:
    left = 8 * A100.memory_bytes * 0.9 - LLAMA3_70B.weight_bytes
    assert kv_room(LLAMA3_70B, A100, 8) == int(left / (320 * 1024))
    assert kv_room(LLAMA3_70B, A100, 4) < kv_room(LLAMA3_70B, A100, 8)
    # Sixteen GPUs hold the eight heads twice.
    twice = (16 * A100.memory_bytes * 0.9 - LLAMA3_70B.weight_bytes) / (2 * 320 * 1024)
    assert kv_room(LLAMA3_70B, A100, 16) == pytest.approx(twice, abs=1)


def test_a_model_that_does_not_fit_says_how_many_gpus_would_hold_it() -> None:
    with pytest.raises(Invalid, match=r"141\.1 GB of weights, does not fit 1 x A100.*: take 2"):
        kv_room(LLAMA3_70B, A100)
    assert kv_room(LLAMA3_70B, A100, 2) > 0
    with pytest.raises(Invalid, match="take 16"):
        kv_room(DEEPSEEK_V3, H100, 8)
    assert kv_room(DEEPSEEK_V3, H100, 16) > 0
    with pytest.raises(Invalid, match="no number of them would do"):
        kv_room(QWEN25_7B, replace(L40S, memory_bytes=1e6))


@pytest.mark.parametrize("degree", [0, -1, 3, 7, 1 << 11])
def test_a_degree_that_heads_do_not_go_round_is_refused(degree: int) -> None:
    for ask in (prefill_prior, decode_prior, kv_room):
        with pytest.raises(Invalid, match=f"tensor_parallel {degree} does not divide Qwen2.5-7B"):
            ask(QWEN25_7B, A100, degree)
