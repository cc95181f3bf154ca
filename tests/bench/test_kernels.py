"""Benches of a GPU's kernels, on problems so small that the interpreter does them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported

from bench import attention, decode_steps, hbm, kernels, rounds
from bench.decode_steps import StepSizes
from bench.guest import NotInstalled
from bench.kernels import Sizes
from bench.random_model import LLAMA_8B
from bench.rounds import Way
from kvstore.engine.core import EngineCore, Event
from kvstore.engine.device import Device

_SMALL = replace(
    LLAMA_8B, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2, head_dim=16,
    vocab_size=300, dtype="float32",
)  # fmt: skip


SMALL = Sizes(bytes=1 << 15, block_tokens=4, page_tokens=2, layers=1)  # two blocks


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is there to warm anything: the interpreter compiles nothing."""
    monkeypatch.setattr(rounds, "WARM_ROUNDS", 0)


def timed(act: Callable[[], object]) -> Way:
    def once() -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    return once


@pytest.mark.usefixtures("cold")
def test_every_row_is_measured_against_a_copy() -> None:
    report = kernels.measured(2, lambda _: None, SMALL, torch.device("cpu"), timed, timed)
    names = [row.name for row in report.rows]
    assert names == [
        f"{way}, {what}"
        for what in ("moved", "moved and hashed", "fp8", "int8")
        for way in ("gather", "scatter")
    ]
    assert all(row.ratio and row.limit and row.value > 0 for row in report.rows)
    assert [row.counted for row in report.rows] == [True] * 4 + [False] * 4
    assert report.rows[0].sizes["bytes"] == SMALL.bytes
    assert all(row.also["alone_ms"] > 0 for row in report.rows)


@pytest.mark.usefixtures("cold")
def test_attention_is_measured_against_the_time_of_its_bytes() -> None:
    sizes = attention.Sizes(
        batches=((2, 40), (1, 70)),
        page_tokens=8,
        dtype=torch.float32,
        steps=StepSizes((1, 3), 20, _SMALL),
    )
    device = Device.with_kernels(torch.device("cpu"))
    report = attention.measured(2, lambda _: None, sizes, device, timed)
    steps = [f"a decode step of {batch} as a graph" for batch in (1, 3)]
    assert [row.name for row in report.rows] == ["2 x 40", "1 x 70", *steps]
    assert report.rows[0].sizes["bytes"] == 2 * 2 * 40 * 8 * 128 * 4
    assert all(row.ratio and row.limit and row.value > 0 for row in report.rows)
    assert [row.counted for row in report.rows] == [True, True, False, False]


def test_one_way_runs_recorded_steps_in_each_round_and_the_other_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepped: list[tuple[bool, int, int]] = []
    step = EngineCore.step

    def noted(core: EngineCore) -> list[Event]:
        chunks = core.scheduler.plan()  # empty before they enter
        stepped.append((core.graphs is not None, len(chunks), sum(c.end - c.start for c in chunks)))
        return step(core)

    monkeypatch.setattr(EngineCore, "step", noted)
    device = Device.with_kernels(torch.device("cpu"))
    decode_steps.rows(2, lambda _: None, StepSizes((3,), 20, _SMALL), device)
    rounds = [(True, 3, 3), (False, 3, 3)] * 4
    assert stepped == [(True, 0, 0)] * 2 + rounds


@pytest.mark.usefixtures("cold")
def test_all_ways_between_hbm_and_the_host_are_measured_against_a_copy() -> None:
    report = hbm.measured(2, lambda _: None, SMALL, torch.device("cpu"))
    assert [row.name for row in report.rows] == [
        "HBM to pinned memory",
        "pinned memory to HBM",
        "HBM to slots",
        "slots to HBM",
        "pages to slots in HBM",
        "slots in HBM to pages",
    ]
    assert all(row.sizes["bytes"] == SMALL.bytes and row.value > 0 for row in report.rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("bench", [kernels, attention, hbm])
def test_without_a_gpu_it_says_what_is_missing(bench: Any) -> None:
    with pytest.raises(NotInstalled, match="CUDA GPU is needed"):
        bench.run(1, lambda _: None)
