"""Which models have inputs that are rounded otherwise on other devices."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.engine.connectors.few_bits import BLOCKS, FP8, SCALED, device_of, few_bits, libraries

NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
HOPPER, BLACKWELL, AMPERE, ADA = (9, 0), (10, 0), (8, 0), (8, 9)


def compressed(weights: dict[str, Any], how: str) -> dict[str, Any]:
    groups = {"group_0": {"weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": how, "config_groups": groups}


@pytest.mark.parametrize(
    "said",
    [
        "modelopt_fp4",
        "nvfp4_online",
        "nvfp4_per_token",
        "petit_nvfp4",
        "mxfp4",
        "gpt_oss_mxfp4",
        "mxfp8",
        "modelopt_mixed",
        "deepseek_v4_fp8",
        {"quant_algo": "NVFP4"},
        {"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}},
        {"quant_method": "fp8", "routed_experts_quant_method": "mxfp4"},
        compressed(NVFP4, "nvfp4-pack-quantized"),
        compressed(NVFP4, "mixed-precision"),
    ],
)
def test_floats_that_have_scales_of_their_own_are_known_however_they_are_called(said: Any) -> None:
    assert few_bits(None, said) == few_bits(said, {"quant_method": "fp8"}) == SCALED


@pytest.mark.parametrize(
    "said",
    [
        "fp8",
        "modelopt",
        "w8a8_fp8",
        "fp8_per_tensor",
        {"quant_method": "fp8", "weight_block_size": None},
        {"quant_algo": "FP8"},
        compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized"),
    ],
)
def test_fp8_is_known_however_it_is_called(said: Any) -> None:
    assert few_bits(None, said) == FP8


@pytest.mark.parametrize(
    "said",
    [
        "fp8_per_block",
        {"linear": "fp8_per_block"},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_algo": "FP8_PB_WO"},
        {"quant_algo": "FP8_BLOCK_SCALES"},
        {"quant_method": "quark", "weight": {"dtype": "fp8_e4m3", "qscheme": "per_block"}},
        compressed({"num_bits": 8, "type": "float", "strategy": "block"}, "float-quantized"),
    ],
)
def test_fp8_that_has_a_scale_for_each_block_is_known_however_it_is_called(said: Any) -> None:
    assert few_bits(None, said) == few_bits(said, {"quant_method": "fp8"}) == BLOCKS


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        "awq",
        "gptq_marlin",
        "w8a8_int8",
        {"quant_method": "bitsandbytes", "bnb_4bit_compute_dtype": "bfloat16"},
        compressed(INT4, "pack-quantized"),
        compressed({"num_bits": 8, "type": "int"}, "int-quantized"),
    ],
)
def test_of_no_other_model_is_anything_named(said: Any) -> None:
    assert few_bits(said, None) == ""
    assert {device_of("", one) for one in (AMPERE, HOPPER, BLACKWELL, None)} == {""}
    assert libraries("") == []


def test_devices_that_multiply_other_floats_have_other_names() -> None:
    assert len({device_of(SCALED, one) for one in (AMPERE, HOPPER, BLACKWELL)}) == 3
    assert device_of(SCALED, (10, 3)) == device_of(SCALED, BLACKWELL)
    assert device_of(SCALED, None, "rocm 9.4") != device_of(SCALED, None, "rocm 9.5")


def test_of_fp8_a_device_that_has_none_is_named() -> None:
    """The names of models in FP8 are what they were on all others."""
    assert {device_of(FP8, one) for one in (ADA, HOPPER, BLACKWELL, None)} == {""}
    assert device_of(FP8, AMPERE) == device_of(FP8, (8, 6)) != ""


def test_of_scales_of_blocks_a_device_is_named_whose_experts_have_kernels_of_their_own() -> None:
    """The names of models in FP8 are what they were on Hopper."""
    assert {device_of(BLOCKS, one) for one in (ADA, HOPPER, None)} == {""}
    assert len({device_of(BLOCKS, one) for one in (AMPERE, HOPPER, BLACKWELL, (12, 0))}) == 4


def test_a_library_of_kernels_is_named_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"flashinfer", "numpy"}
    monkeypatch.setattr(
        "kvstore.engine.connectors.few_bits.find_spec", lambda name: name in there or None
    )
    assert libraries(SCALED) == ["flashinfer"]
    assert libraries(FP8) == libraries(BLOCKS) == []
