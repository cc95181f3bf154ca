"""Blocks between a GPU's pages and an area of its memory that others move them in and out of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import area as module
from kvstore.kernels.gpu import strips
from kvstore.kernels.gpu.area import Area
from kvstore.kernels.gpu.turn import Turn
from kvstore.kernels.pieces import Places
from kvstore.kernels.shapes import Coding
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_straight import on_the_cpu
from tests.kernels.gpu.test_strips import case_with

POISON, CPU = 0xA5, torch.device("cpu")
SEEDS = range(12)
FIRST = 4_096  # of the area is somebody else's


class Lying:
    """A case's slots in an area that is poison elsewhere, and the case's pages."""

    def __init__(self, case: Any) -> None:
        self.case, self.there = case, There(case)
        size = -(-(FIRST + len(case.arena)) // 8) * 8
        self.area = Area(size, DEVICE)
        self.area.memory.fill_(POISON)
        blocks = dataclasses.replace(
            case.blocks,
            payload_offsets=FIRST + case.blocks.payload_offsets,
            table_offsets=FIRST + case.blocks.table_offsets,
        )
        self.places = Places(np.zeros(0, np.uint8), case.geometry, case.span, blocks)

    def gathered(self) -> np.ndarray:
        return self.area.gathered(self.places, self.there.pages, self.case.block_table)

    def scattered(self, entries: np.ndarray) -> list[bool]:
        asked = (self.there.pages, self.case.block_table)
        return [bool(one) for one in self.area.scattered(self.places, entries, *asked)]

    def entered(self) -> np.ndarray:
        """(blocks, strips that move): what the case's own tables say."""
        every = range(len(self.case.blocks.tokens))
        return np.array([self.case.table(one)[self.places.strips] for one in every]).view(np.int64)

    def pages_with(self, blocks: set[int]) -> np.ndarray:
        """The engine's memory, poison but for the tokens of these blocks."""
        engine = np.full(len(self.case.engine), POISON, np.uint8)
        for block, _, _, index in self.case.strips():
            if block in blocks:
                engine[index] = self.case.engine[index]
        return engine

    @property
    def every(self) -> set[int]:
        return set(range(len(self.case.blocks.tokens)))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_area_is_filled_as_slots_are_by_the_cpu_and_no_byte_besides(
    case_of: Any, seed: int
) -> None:
    lying = Lying(case_with(case_of, seed))
    whole, case = on_the_cpu(lying.case), lying.case
    made = lying.gathered()
    expected = np.full(len(lying.area.memory), POISON, np.uint8)
    for block, row, place, _ in case.strips():
        first = int(case.blocks.table_offsets[block]) + 8 * row
        for some in (place, slice(first, first + 8)):
            expected[FIRST:][some] = whole[some]
    assert np.array_equal(lying.area.memory.cpu().numpy(), expected)
    case.arena[:] = whole
    assert np.array_equal(made, lying.entered())


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_get_what_has_its_entries_and_no_byte_besides(case_of: Any, seed: int) -> None:
    lying = Lying(case_with(case_of, seed))
    entries = lying.gathered()
    tables = lying.places.blocks.table_offsets
    for at in tables.tolist():  # what is on the device says nothing: entries come from the host
        lying.area.memory[at : at + 8 * lying.case.geometry.strips] = 0
    lying.there.engine.fill_(POISON)
    assert all(lying.scattered(entries))
    assert np.array_equal(lying.there.engine.cpu().numpy(), lying.pages_with(lying.every))


@pytest.mark.parametrize("codec", ["fp8", "int8"])
def test_a_codec_codes_on_the_device_what_the_cpu_would(case_of: Any, codec: str) -> None:
    coding = Coding(codec, "bfloat16", 16)
    case = case_with(case_of, 3, coding=coding, block_tokens=16, run_bytes=256)
    case.engine[:] = np.random.default_rng(3).integers(0, 0x40, len(case.engine), np.uint8)
    lying, whole = Lying(case), on_the_cpu(case)
    made = lying.gathered()
    there = lying.area.memory.cpu().numpy()[FIRST:]
    assert all(np.array_equal(there[place], whole[place]) for _, _, place, _ in case.strips())
    case.arena[:] = whole
    assert np.array_equal(made, lying.entered())
    assert all(lying.scattered(made))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_damaged_or_not_written_touches_no_page(case_of: Any, seed: int) -> None:
    lying = Lying(case_with(case_of, seed))
    entries, case = lying.gathered(), lying.case
    every = list(case.strips())
    damaged, row, place, _ = every[case.rng.integers(len(every))]
    if seed % 2:
        lying.area.memory[FIRST + int(case.rng.integers(place.start, place.stop))] ^= 1
    else:
        entries[damaged, lying.places.strips.tolist().index(row)] = 0
    lying.there.engine.fill_(POISON)
    good = lying.scattered(entries)
    assert good == [one != damaged for one in sorted(lying.every)]
    assert np.array_equal(
        lying.there.engine.cpu().numpy(), lying.pages_with(lying.every - {damaged})
    )


def test_a_block_that_changes_after_it_was_verified_is_not_good(
    case_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying = Lying(case_with(case_of, 1))
    entries, verify = lying.gathered(), strips.verify
    place = next(place for _, _, place, _ in lying.case.strips())

    def then_changed(arena: torch.Tensor, *more: Any) -> torch.Tensor:
        found = verify(arena, *more)
        arena[FIRST + place.start] ^= 1
        return found

    monkeypatch.setattr(strips, "verify", then_changed)
    assert lying.scattered(entries).count(False) == 1


def test_an_area_that_is_made_in_inference_mode_serves_whoever_is_not_in_it(case_of: Any) -> None:
    case = case_with(case_of, 4)
    with torch.inference_mode():
        lying = Lying(case)
        entries = lying.gathered()
    assert all(lying.scattered(entries))


def test_of_no_blocks_nothing_is_moved(case_of: Any) -> None:
    lying = Lying(case_with(case_of, 4))
    before = lying.area.memory.clone()
    none = np.zeros(0, np.int64)
    lying.places = dataclasses.replace(lying.places, blocks=lying.places.blocks.pick(none))
    assert lying.scattered(lying.gathered()) == []
    assert torch.equal(lying.area.memory, before)


def test_memory_of_a_gpu_is_of_cuda_itself_and_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Region:
        bytes = torch.zeros(64, dtype=torch.uint8)

    def allocated(size: int, device: torch.device) -> Region:
        asked.append((size, device))
        return Region()

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        asked.append("its device is current")
        yield
        asked.append("it is no more")

    monkeypatch.setattr(module, "allocated", allocated)
    monkeypatch.setattr(module, "Turn", lambda device: Turn(CPU))
    monkeypatch.setattr(torch.cuda, "device", current)
    made = Area(64, torch.device("cuda", 3))
    there = (64, torch.device("cuda", 3))
    assert asked == ["its device is current", there, "it is no more"]
    assert made.memory is Region.bytes
    assert made.cuda is None, "what stands for it here is the host's"
