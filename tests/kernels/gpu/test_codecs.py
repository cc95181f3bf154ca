"""Strips coded and decoded on a GPU: byte for byte what the CPU's kernels make of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from kvstore import codec
from kvstore.kernels.gpu import pages, strips
from kvstore.kernels.shapes import ITEM_BYTES, Coding
from tests.kernels import codec_reference
from tests.kernels.gpu.machine import There

POISON = 0xA5
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
KINDS = [*itertools.product(("fp8", "int8"), ITEM_BYTES)]
each_kind = pytest.mark.parametrize(("name", "dtype"), KINDS)


def case_with(case_of: Any, seed: int, name: str, dtype: str) -> Any:
    """Numbers of one size with a few loud ones in odd cases, any bits in even ones."""
    case = case_of(seed, coding=Coding(name, dtype, codec.GROUP_TOKENS))
    if seed % 2:
        rng = np.random.default_rng(seed)
        count = case.engine.size // ITEM_BYTES[dtype]
        x = rng.standard_normal(count) * 10.0 ** rng.uniform(-4, 3)
        x[rng.integers(0, count, 1 + count // 200)] *= 20
        case.engine[:] = codec_reference.raw_of(x, dtype)
    return case


@pytest.mark.parametrize("seed", range(8))
@each_kind
def test_codes_scales_and_entries_are_those_of_the_cpu_and_no_byte_besides(
    case_of: Any, name: str, dtype: str, seed: int
) -> None:
    case = case_with(case_of, seed, name, dtype)
    there = There(case)
    case.gather()
    strips.gather(there.arena, *there.asked)
    assert (there.arena.cpu().numpy() == case.arena).all()
    assert (there.engine.cpu().numpy() == case.engine).all()


@pytest.mark.parametrize("seed", range(8))
@each_kind
def test_what_comes_back_is_what_comes_back_of_the_cpu(
    case_of: Any, name: str, dtype: str, seed: int
) -> None:
    case = case_with(case_of, seed, name, dtype)
    case.gather()
    case.engine[:] = POISON
    there = There(case)
    assert case.scatter().all()
    assert strips.scatter(there.arena, *there.asked).all()
    assert (there.engine.cpu().numpy() == case.engine).all()
    assert (there.arena.cpu().numpy() == case.arena).all()


@each_kind
def test_of_a_damaged_strip_nothing_is_decoded(case_of: Any, name: str, dtype: str) -> None:
    case = case_with(case_of, 5, name, dtype)
    case.gather()
    places = list(case.strips())
    i, _, place, index = places[len(places) // 2]
    for at in (place.start, place.stop - 1):
        case.engine[:] = POISON
        there = There(case)
        there.arena[at] ^= 1
        good = strips.scatter(there.arena, *there.asked).cpu()
        assert torch.equal(good, torch.arange(len(good)) != i)
        assert (there.engine.cpu().numpy()[index] == POISON).all()


def test_pages_move_no_codes(case_of: Any) -> None:
    there = There(case_with(case_of, 5, "fp8", "bfloat16"))
    with pytest.raises(ValueError, match=r"gpu\.strips"):
        pages.gather(there.arena, *there.asked)
