"""Strips moved and hashed on a GPU: bytes as they were, entries as the CPU has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from kvstore.kernels.gpu import reference, strips
from tests.kernels.gpu.machine import There

POISON = 0xA5
CASES = range(20)


def case_with(case_of: Any, seed: int, **fields: Any) -> Any:
    """A case all of whose steps are multiples of 8 bytes."""
    orders = case_of.ORDERS[1:]
    return case_of(seed, **{"order": orders[seed % len(orders)], **fields})


def gathered(case: Any) -> There:
    there = There(case)
    strips.gather(there.arena, *there.asked)
    return there


@pytest.mark.parametrize("seed", CASES)
def test_a_gather_writes_every_strip_and_entry_and_no_byte_besides(case_of: Any, seed: int) -> None:
    there = There(case_with(case_of, seed))
    engine = there.engine.clone()
    moved = reference.gather(there.arena, there.engine, *there.asked)
    expected = reference.entered(moved, there.engine, *there.asked)
    strips.gather(there.arena, *there.asked)
    assert torch.equal(there.arena.cpu(), expected)
    assert torch.equal(there.engine, engine)


@pytest.mark.parametrize("seed", CASES)
def test_a_scatter_writes_every_token_of_the_engine_and_no_byte_besides(
    case_of: Any, seed: int
) -> None:
    there = gathered(case_with(case_of, seed))
    arena = there.arena.clone()
    there.engine.fill_(POISON)
    expected = reference.scatter(there.arena, there.engine, *there.asked)
    assert strips.scatter(there.arena, *there.asked).all()
    assert torch.equal(there.engine.cpu(), expected)
    assert torch.equal(there.arena, arena)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 47])
def test_strips_of_every_length_class_have_the_hash_that_the_library_gives(
    case_of: Any, tokens: int
) -> None:
    for run_bytes in (24, 64):
        case = case_with(case_of, 3, run_bytes=run_bytes, block_tokens=tokens)
        there = gathered(case)
        case.arena[:] = there.arena.cpu().numpy()
        for i, row, place, _ in case.strips():
            assert case.table(i)[row] == xxhash.xxh3_64_intdigest(case.arena[place])


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6])
def test_a_flipped_bit_anywhere_in_a_strip_is_found_and_only_in_its_block(
    case_of: Any, seed: int
) -> None:
    case = case_with(case_of, seed)
    there = gathered(case)
    about = (case.geometry, case.blocks, *case.span)
    assert strips.verify(there.arena, *about).all()
    places = list(case.strips())
    for _ in range(3):
        i, _, place, _ = places[case.rng.integers(len(places))]
        at = int(case.rng.integers(place.start, place.stop))
        there.arena[at] ^= 1 << int(case.rng.integers(8))
        expected = torch.arange(len(case.blocks.tokens)) != i
        assert torch.equal(strips.verify(there.arena, *about).cpu(), expected)
        assert torch.equal(strips.scatter(there.arena, *there.asked).cpu(), expected)
        untouched = There(case)
        strips.gather(there.arena, *untouched.asked)


def test_a_strip_that_is_not_written_is_not_good_and_its_engine_bytes_stay(case_of: Any) -> None:
    case = case_with(case_of, 3)
    there = gathered(case)
    i, row, _, index = next(case.strips())
    entry = int(case.blocks.table_offsets[i]) + 8 * row
    there.arena[entry : entry + 8] = 0
    there.engine.fill_(POISON)
    good = strips.scatter(there.arena, *there.asked).cpu().numpy()
    assert (good == (np.arange(len(good)) != i)).all()
    assert (there.engine.cpu().numpy()[index] == POISON).all()
    about = (case.geometry, case.blocks, *case.span)
    assert (strips.verify(there.arena, *about).cpu().numpy() == good).all()


def test_the_cpus_kernels_take_what_a_gpus_gather_left(case_of: Any) -> None:
    case = case_with(case_of, 11)
    case.arena[:] = gathered(case).arena.cpu().numpy()
    assert case.verify().all()
    engine = case.engine.copy()
    assert case.scatter().all()
    assert (case.engine == engine).all()


def test_what_is_no_multiple_of_a_word_is_refused(case_of: Any) -> None:
    there = There(case_with(case_of, 3, run_bytes=36))
    with pytest.raises(ValueError, match="not multiples of 8 bytes"):
        strips.gather(there.arena, *there.asked)
    short = There(case_with(case_of, 4, run_bytes=8, block_tokens=1))
    with pytest.raises(ValueError, match="must have 24 at least"):
        strips.gather(short.arena, *short.asked)
