"""The table holds dense peaks, one direction of links, and shares that are shares."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from kvstore.core.hardware import (
    A100,
    FABRICS,
    GPUS,
    H100,
    H200,
    L40S,
    NVLINK3,
    NVLINK4,
    PCIE4,
    PCIE5,
    RDMA_100,
    RDMA_200,
    RDMA_400,
    SEEN,
    TCP_10,
    Efficiency,
    Fabric,
    Gpu,
    gpu_called,
)
from kvstore.errors import Invalid


def test_peaks_are_dense_and_fp8_is_twice_bf16_where_there_is_any() -> None:
    assert not A100.fp8_flops
    for gpu in (H100, H200, L40S):
        assert gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=0.02)
    assert H100.bf16_flops < 1e15, "a sheet's figure with sparsity is twice that"
    assert H200.memory_bytes_per_second > H100.memory_bytes_per_second


def test_a_gpu_is_known_by_what_its_driver_calls_it() -> None:
    assert gpu_called("NVIDIA H100 80GB HBM3") is H100
    assert gpu_called("NVIDIA A100-SXM4-80GB") is A100
    assert gpu_called("NVIDIA H200") is H200 and gpu_called("NVIDIA L40S") is L40S
    assert gpu_called("NVIDIA L40") is gpu_called("cpu") is gpu_called("") is None


def test_only_weights_of_one_byte_are_multiplied_as_fp8() -> None:
    assert H100.flops(2) == H100.flops(0.5) == H100.bf16_flops
    assert H100.flops(1) == H100.fp8_flops
    assert A100.flops(1) == A100.bf16_flops


def test_gpus_without_nvlink_talk_over_pcie() -> None:
    assert L40S.link_bytes_per_second == L40S.pcie_bytes_per_second
    assert all(gpu.link_bytes_per_second >= gpu.pcie_bytes_per_second for gpu in GPUS)


def test_no_link_is_taken_for_faster_than_its_line() -> None:
    assert NVLINK3.bytes_per_second < A100.nvlink_bytes_per_second
    assert NVLINK4.bytes_per_second < H100.nvlink_bytes_per_second
    assert PCIE4.bytes_per_second < A100.pcie_bytes_per_second
    assert PCIE5.bytes_per_second < H100.pcie_bytes_per_second
    for fabric, gigabits in ((RDMA_100, 100), (RDMA_200, 200), (RDMA_400, 400), (TCP_10, 10)):
        assert fabric.bytes_per_second < gigabits * 1e9 / 8


def test_a_fabric_is_a_cost() -> None:
    assert RDMA_400.cost.seconds(45e9) == pytest.approx(1.00002)
    assert len({fabric.name for fabric in FABRICS}) == len(FABRICS)
    with pytest.raises(Invalid, match="bytes_per_second"):
        Fabric("a wire cut through", 0, 0)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_no_device_has_is_refused_by_name(value: float) -> None:
    for item in fields(Gpu)[1:]:
        with pytest.raises(Invalid, match=rf"Gpu\.{item.name} cannot be"):
            replace(A100, **{item.name: value})


def test_shares_are_of_one_and_times_are_not_negative() -> None:
    for item in fields(Efficiency):
        bad = (-1e-3, math.nan) if item.name.endswith("_seconds") else (0, 1.01, -1, math.nan)
        for value in bad:
            with pytest.raises(Invalid, match=rf"Efficiency\.{item.name} cannot be"):
                replace(SEEN, **{item.name: value})
