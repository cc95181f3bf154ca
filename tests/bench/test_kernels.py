"""Benches of a GPU's kernels, on problems so small that the interpreter does them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported

from bench import attention, hbm, kernels
from bench.guest import NotInstalled
from bench.kernels import Sizes
from bench.rounds import Way


def timed(act: Callable[[], object]) -> Way:
    def once() -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    return once


def test_every_row_is_measured_against_a_copy() -> None:
    small = Sizes(bytes=1 << 17, block_tokens=16, page_tokens=8, layers=1)
    report = kernels.measured(2, lambda _: None, small, torch.device("cpu"), timed)
    names = [row.name for row in report.rows]
    assert names == [
        f"{way}, {what}"
        for what in ("moved", "moved and hashed", "fp8", "int8")
        for way in ("gather", "scatter")
    ]
    assert all(row.ratio and row.limit and row.value > 0 for row in report.rows)
    assert [row.counted for row in report.rows] == [True] * 4 + [False] * 4
    assert report.rows[0].sizes["bytes"] == 1 << 17


def test_attention_is_measured_against_the_time_of_its_bytes() -> None:
    small = attention.Sizes(batches=((2, 40), (1, 70)), page_tokens=8, dtype=torch.float32)
    report = attention.measured(2, lambda _: None, small, torch.device("cpu"), timed)
    assert [row.name for row in report.rows] == ["2 x 40", "1 x 70"]
    assert report.rows[0].sizes["bytes"] == 2 * 2 * 40 * 8 * 128 * 4
    assert all(row.counted and row.ratio and row.value > 0 for row in report.rows)


def test_all_ways_between_hbm_and_the_host_are_measured_against_a_copy() -> None:
    small = Sizes(bytes=1 << 17, block_tokens=16, page_tokens=8, layers=1)
    report = hbm.measured(2, lambda _: None, small, torch.device("cpu"))
    assert [row.name for row in report.rows] == [
        "HBM to pinned memory",
        "pinned memory to HBM",
        "HBM to slots",
        "slots to HBM",
        "pages to slots in HBM",
        "slots in HBM to pages",
    ]
    assert all(row.sizes["bytes"] == 1 << 17 and row.value > 0 for row in report.rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("bench", [kernels, attention, hbm])
def test_without_a_gpu_it_says_what_is_missing(bench: Any) -> None:
    with pytest.raises(NotInstalled, match="CUDA GPU is needed"):
        bench.run(1, lambda _: None)
