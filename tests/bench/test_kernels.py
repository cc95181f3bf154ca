"""The bench of a GPU's kernels, on a problem so small that the interpreter does it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported

from bench import kernels
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    with pytest.raises(NotInstalled, match="CUDA GPU is needed"):
        kernels.run(1, lambda _: None)
