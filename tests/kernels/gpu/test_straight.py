"""Blocks between a GPU's pages and slots of host memory in one copy: as the CPU would move them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels import strips
from kvstore.kernels.gpu.straight import Straight
from kvstore.kernels.gpu.turn import Turn
from kvstore.kernels.pieces import Places
from kvstore.kernels.shapes import Coding
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_strips import case_with

POISON = 0xA5
SEEDS = range(24)
BLOCKS = (1, 3)  # on their way at once


def straight(case: Any, blocks: int) -> Straight:
    return Straight(DEVICE, Turn(DEVICE), blocks * case.geometry.payload_bytes)


def places(case: Any) -> Places:
    return Places(case.arena, case.geometry, case.span, case.blocks)


def on_the_cpu(case: Any) -> Any:
    """The arena as the CPU's kernels fill it."""
    before = case.arena.copy()
    strips.gather(case.arena, case.geometry, case.blocks, case.pages, case.block_table, *case.span)
    filled, case.arena[:] = case.arena.copy(), before
    return filled


def filled(case: Any, there: There, blocks: int) -> None:
    straight(case, blocks).gathered(places(case), there.pages, case.block_table)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_slots_and_tables_are_filled_as_by_the_cpu_and_no_byte_besides(
    case_of: Any, seed: int, blocks: int
) -> None:
    case = case_with(case_of, seed)
    there, expected = There(case), on_the_cpu(case)
    engine = there.engine.clone()
    filled(case, there, blocks)
    assert np.array_equal(case.arena, expected)
    assert torch.equal(there.engine, engine)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_pages_get_back_every_token_and_no_byte_besides(
    case_of: Any, seed: int, blocks: int
) -> None:
    case = case_with(case_of, seed)
    there = There(case)
    filled(case, there, blocks)
    arena, want = case.arena.copy(), np.full(len(case.engine), POISON, np.uint8)
    for _, _, _, index in case.strips():
        want[index] = case.engine[index]
    there.engine.fill_(POISON)
    assert straight(case, blocks).scattered(places(case), there.pages, case.block_table).all()
    assert np.array_equal(there.engine.cpu().numpy(), want)
    assert np.array_equal(case.arena, arena)


@pytest.mark.parametrize("codec", ["fp8", "int8"])
@pytest.mark.parametrize("seed", range(4))
def test_a_codec_codes_on_the_device_what_the_cpu_would(
    case_of: Any, seed: int, codec: str
) -> None:
    coding = Coding(codec, "bfloat16", 16)
    case = case_with(case_of, seed, coding=coding, block_tokens=16, run_bytes=256)
    case.engine[:] = np.random.default_rng(seed).integers(0, 0x40, len(case.engine), np.uint8)
    there, expected = There(case), on_the_cpu(case)
    filled(case, there, 1)
    assert np.array_equal(case.arena, expected)
    assert straight(case, 1).scattered(places(case), there.pages, case.block_table).all()


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_damaged_or_not_written_touches_no_page(
    case_of: Any, seed: int, blocks: int
) -> None:
    case = case_with(case_of, seed)
    there = There(case)
    filled(case, there, blocks)
    every = list(case.strips())
    damaged, row, place, _ = every[case.rng.integers(len(every))]
    if seed % 2:
        case.arena[int(case.rng.integers(place.start, place.stop))] ^= 1
    else:
        case.table(damaged)[row] = 0
    there.engine.fill_(POISON)
    want = np.full(len(case.engine), POISON, np.uint8)
    for block, _, _, index in every:
        if block != damaged:
            want[index] = case.engine[index]
    good = straight(case, blocks).scattered(places(case), there.pages, case.block_table)
    assert good.tolist() == [i != damaged for i in range(len(good))]
    assert np.array_equal(there.engine.cpu().numpy(), want)


def test_an_entry_stands_only_once_its_strip_is_there(
    case_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader that follows would find at the moment at which each entry appears."""
    from kvstore.kernels.gpu import straight as module

    case = case_with(case_of, 5)
    there, expected, entered = There(case), on_the_cpu(case), []
    enter = module._Move.enter

    def watched(self: Any, at: Any, entries: Any) -> None:
        for block, row, place, _ in case.strips():
            if self.at(np.array([block]))[0, 0] in at:
                assert case.table(block)[row] == 0
                assert np.array_equal(case.arena[place], expected[place])
                entered.append(block)
        enter(self, at, entries)

    monkeypatch.setattr(module._Move, "enter", watched)
    filled(case, there, 1)
    assert set(entered) == set(range(len(case.blocks.tokens)))


@pytest.mark.parametrize("odd", [{"run_bytes": 36}, {"run_bytes": 8, "block_tokens": 1}])
def test_strips_that_the_device_cannot_hash_are_not_taken(
    case_of: Any, odd: dict[str, int]
) -> None:
    case = case_with(case_of, 1, **odd)
    assert not Straight.takes(places(case), case.pages)
    even = case_with(case_of, 1, run_bytes=64)
    assert Straight.takes(places(even), even.pages)
