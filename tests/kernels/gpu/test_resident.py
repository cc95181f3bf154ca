"""Blocks between a GPU's pages and slots in memory of the same device, their heads on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import resident as module
from kvstore.kernels.gpu import strips
from kvstore.kernels.gpu.resident import Resident
from kvstore.kernels.gpu.turn import Turn
from kvstore.kernels.pieces import Places
from kvstore.kernels.shapes import Coding
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_straight import on_the_cpu
from tests.kernels.gpu.test_strips import case_with

POISON = 0xA5
SEEDS = range(24)
FIRST = 4_096  # of the host's memory is DRAM; what follows is of the device but for slots' heads


class Split:
    """A case's slots: heads in `host`, payloads in `arena`, and all besides is poison."""

    def __init__(self, case: Any) -> None:
        self.case, there = case, There(case)
        self.engine, self.pages = there.engine, there.pages
        self.host = np.full(FIRST + len(case.arena), POISON, np.uint8)
        self.host[FIRST:] = case.arena
        self.arena = torch.full_like(there.arena, POISON)
        self.resident = Resident(self.arena, FIRST, Turn(DEVICE))

    def places(self, first: int = FIRST) -> Places:
        blocks = self.case.blocks
        moved = dataclasses.replace(
            blocks,
            payload_offsets=first + blocks.payload_offsets,
            table_offsets=first + blocks.table_offsets,
        )
        return Places(self.host, self.case.geometry, self.case.span, moved)

    def entry(self, block: int, row: int) -> slice:
        """Where the device has the entry of a strip; the host has it `FIRST` bytes further on."""
        first = int(self.case.blocks.table_offsets[block]) + 8 * row
        return slice(first, first + 8)

    def gathered(self) -> None:
        self.resident.gathered(self.places(), self.pages, self.case.block_table)

    def scattered(self) -> list[bool]:
        good = self.resident.scattered(self.places(), self.pages, self.case.block_table)
        return [bool(one) for one in good]

    def now(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of the host's memory, the device's and the engine's."""
        return self.host.copy(), self.arena.cpu().numpy().copy(), self.engine.cpu().numpy().copy()

    def filled(self) -> tuple[np.ndarray, np.ndarray]:
        """The host's memory and the device's, to be had once what is as it was made is filled."""
        whole = on_the_cpu(self.case)
        host, arena = self.host.copy(), np.full(len(whole), POISON, np.uint8)
        for block, row, place, _ in self.case.strips():
            entry = self.entry(block, row)
            host[FIRST:][entry] = arena[entry] = whole[entry]
            arena[place] = whole[place]
        return host, arena

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


def same(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_strips_are_filled_on_the_device_and_entries_on_both_as_by_the_cpu_and_no_byte_besides(
    case_of: Any, seed: int
) -> None:
    split = Split(case_with(case_of, seed))
    expected, (_, _, engine) = split.filled(), split.now()
    split.gathered()
    assert same(split.now(), (*expected, engine))


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_get_back_every_token_and_no_byte_besides(case_of: Any, seed: int) -> None:
    split = Split(case_with(case_of, seed))
    split.gathered()
    split.engine.fill_(POISON)
    host, arena, _ = split.now()
    assert all(split.scattered())
    assert same(split.now(), (host, arena, split.pages_with(split.every)))


@pytest.mark.parametrize("codec", ["fp8", "int8"])
@pytest.mark.parametrize("seed", range(4))
def test_a_codec_codes_on_the_device_what_the_cpu_would(
    case_of: Any, seed: int, codec: str
) -> None:
    coding = Coding(codec, "bfloat16", 16)
    case = case_with(case_of, seed, coding=coding, block_tokens=16, run_bytes=256)
    case.engine[:] = np.random.default_rng(seed).integers(0, 0x40, len(case.engine), np.uint8)
    split = Split(case)
    expected, (_, _, engine) = split.filled(), split.now()
    split.gathered()
    assert same(split.now(), (*expected, engine))
    assert all(split.scattered())


DAMAGES = (
    "a byte of the device's payload",
    "the host's entry is another",
    "the host's entry is none",
    "the device's entry is another",
    "both entries are the same wrong one",
    "both entries are none",
)


def damage(split: Split, how: str) -> int:
    """Do so to one strip; which block has it."""
    every, rng = list(split.case.strips()), split.case.rng
    block, row, place, _ = every[rng.integers(len(every))]
    here, host = split.entry(block, row), split.host[FIRST:]
    at = int(rng.integers(here.start, here.stop))
    if how == "a byte of the device's payload":
        split.arena[int(rng.integers(place.start, place.stop))] ^= 1
    if how in ("the host's entry is another", "both entries are the same wrong one"):
        host[at] ^= 1
    if how in ("the device's entry is another", "both entries are the same wrong one"):
        split.arena[at] ^= 1
    if how in ("the host's entry is none", "both entries are none"):
        host[here] = 0
    if how == "both entries are none":
        split.arena[here] = 0
    return int(block)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("seed", range(8))
def test_what_the_host_does_not_vouch_for_or_is_damaged_touches_no_page(
    case_of: Any, seed: int, how: str
) -> None:
    split = Split(case_with(case_of, seed))
    split.gathered()
    damaged = damage(split, how)
    split.engine.fill_(POISON)
    host, arena, _ = split.now()
    assert split.scattered() == [i != damaged for i in sorted(split.every)]
    assert same(split.now(), (host, arena, split.pages_with(split.every - {damaged})))


def test_where_no_block_is_good_no_page_is_touched(case_of: Any) -> None:
    split = Split(case_with(case_of, 5))
    split.engine.fill_(POISON)
    before = split.now()
    assert split.scattered() == [False for _ in split.every]
    assert same(split.now(), before)


@pytest.mark.parametrize("seed", range(4))
def test_the_host_has_an_entry_only_once_the_device_has_its_strip(
    case_of: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """What a reader that follows would find when the device is told, and before entries appear."""
    split = Split(case_with(case_of, seed))
    (before, _, _), (_, filled) = split.now(), split.filled()
    gather, words, seen = strips.gather, module._words, []

    def told(*asked: Any) -> None:
        gather(*asked)
        assert np.array_equal(split.host, before)
        seen.append("told")

    def entering(places: Places) -> Any:
        assert np.array_equal(split.host, before)
        assert np.array_equal(split.arena.cpu().numpy(), filled)
        seen.append("entering")
        return words(places)

    monkeypatch.setattr(strips, "gather", told)
    monkeypatch.setattr(module, "_words", entering)
    split.gathered()
    assert seen == ["told", "entering"]
    assert not np.array_equal(split.host, before)


@pytest.mark.parametrize("where", ["before it", "after it", "between its words"])
def test_slots_that_are_not_in_the_devices_memory_are_refused_with_nothing_moved(
    case_of: Any, where: str
) -> None:
    split = Split(case_with(case_of, 5))
    tables = split.case.blocks.table_offsets
    room = len(split.arena) - 8 * split.case.geometry.strips
    beside = {"before it": -8 - tables.min(), "after it": 8 + room - tables.max()}
    split.host = np.concatenate([split.host, split.host])  # all of them are within this
    before, places = split.now(), split.places(FIRST + int(beside.get(where, 4)))
    for move in (split.resident.gathered, split.resident.scattered):
        with pytest.raises(ValueError, match=r"payload|table|multiples"):
            move(places, split.pages, split.case.block_table)
    assert same(split.now(), before)


def test_pages_outside_of_the_block_table_are_refused_with_nothing_moved(case_of: Any) -> None:
    split = Split(case_with(case_of, 5))
    short = split.case.block_table[:0]
    before = split.now()
    with pytest.raises(ValueError, match="the block table has"):
        split.resident.gathered(split.places(), split.pages, short)
    assert same(split.now(), before)
    split.gathered()
    before = split.now()
    with pytest.raises(ValueError, match="the block table has"):
        split.resident.scattered(split.places(), split.pages, short)
    assert same(split.now(), before)
