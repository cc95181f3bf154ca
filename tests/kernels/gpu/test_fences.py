"""The fences find what they promise to, and let the rest be."""

from __future__ import annotations

import ast
import inspect
import textwrap
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kvstore.kernels.gpu import (
    attention_programs,
    codec_programs,
    page_programs,
    strip_programs,
)
from tests.kernels.gpu import fences
from tests.kernels.gpu.fences import PAGES, Outside, standing

pytestmark = pytest.mark.skipif(not fences.INTERPRETED, reason="of programs that are interpreted")
ALL = {"copies": {"there"}, "copies_at": {PAGES}, "adds": {"there"}, "swaps": {"there"}}


@triton.jit
def copies(here, there, first, to, last, BLOCK: tl.constexpr):
    """Words first.. of `here` to words to.. of `there`, those before `last`."""
    at = tl.arange(0, BLOCK)
    kept = first + at < last
    tl.store(there + to + at, tl.load(here + first + at, mask=kept), mask=kept)


@triton.jit
def _address(addresses, which):
    return tl.load(addresses + which).to(tl.pointer_type(tl.int64))


@triton.jit
def copies_at(addresses, first, BLOCK: tl.constexpr):
    """Words first.. at the first address to the same at the second."""
    at = first + tl.arange(0, BLOCK)
    tl.store(_address(addresses, 1) + at, tl.load(_address(addresses, 0) + at))


@triton.jit
def adds(there, word):
    tl.atomic_add(there + word, 1)


@triton.jit
def swaps(there, word):
    tl.atomic_cas(there + word, 0, 1)


def words(count: int = 16) -> torch.Tensor:
    """0, 1, .. with words on both sides that are nobody's, lest a fence that fails harms others."""
    placed = torch.zeros(16 + count + 16, dtype=torch.int64)[16:-16]
    return placed.copy_(torch.arange(count))


def copied(first: int = 0, to: int = 0, last: int = 1 << 60, here: Any = None) -> torch.Tensor:
    there = words().zero_()
    copies[(1,)](words() if here is None else here, there, first, to, last, BLOCK=8)
    return there


OUTSIDE = {
    "a word behind the end is loaded": ({"first": 9}, "loads 8 bytes at byte 128 of here"),
    "a word before the start is loaded": ({"first": -1}, "loads 8 bytes at byte -8 of here"),
    "a word behind the end is stored": ({"to": 9}, "stores 8 bytes at byte 128 of there"),
    "a word before the start is stored": ({"to": -1}, "stores 8 bytes at byte -8 of there"),
    "an offset is wild": ({"first": 1 << 57}, "loads 8 bytes at address 0x"),
    "one lane that is kept is outside": (
        {"first": 12, "last": 17},
        "loads 8 bytes at byte 128 of here",
    ),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_a_word_outside_of_a_tensor_is_found_by_kernel_tensor_and_byte(what: str) -> None:
    asked, why = OUTSIDE[what]
    with pytest.raises(Outside, match=rf"^copies, program \(0, 0, 0\): {why}"), standing(ALL):
        copied(**asked)


def test_the_last_word_and_the_first_are_inside() -> None:
    with standing(ALL):
        assert torch.equal(copied(first=8)[:8], words()[8:])
        assert torch.equal(copied(to=8)[8:], words()[:8])


@pytest.mark.parametrize("far", [5, -(1 << 20), 1 << 57])
def test_lanes_that_are_masked_off_may_point_anywhere(far: int) -> None:
    with standing(ALL):
        assert not copied(first=far, to=far, last=far).any()
        assert copied(first=12, to=far if far == 5 else 12, last=16).sum() == 12 + 13 + 14 + 15


def test_a_tensors_neighbour_is_outside_of_it_though_the_launch_has_both() -> None:
    whole = words(32)
    with standing(ALL):
        copies[(1,)](whole[:16], whole[16:], 8, 8, 16, BLOCK=8)
    with pytest.raises(Outside, match="byte 128 of here"), standing(ALL):
        copies[(1,)](whole[:16], whole[16:], 9, 0, 99, BLOCK=8)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_a_view_passes_by_is_outside_of_it(transposed: bool) -> None:
    here = words(64).reshape(4, 16)[:, 4:12]
    view = here.T if transposed else here
    with standing(ALL):
        assert torch.equal(copied(16, here=view)[:8], words(64)[20:28])
    with pytest.raises(Outside, match="byte 64 of here"), standing(ALL):
        copied(first=1, here=view)
    with pytest.raises(Outside, match="byte 448 of here"), standing(ALL):
        copied(first=49, here=view)


def at(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([one.data_ptr() for one in tensors])


def test_an_address_that_was_read_must_be_in_what_the_test_told_of() -> None:
    whole = words(48)
    here, there = whole[:16], whole[32:]
    with pytest.raises(Outside, match=r"^copies_at.*loads 8 bytes at"), standing(ALL):
        copies_at[(1,)](at(here, there), 0, BLOCK=8)
    fences.told(here)
    with pytest.raises(Outside, match="stores 8 bytes at byte 256 of pages"), standing(ALL):
        copies_at[(1,)](at(here, there), 0, BLOCK=8)
    fences.told(there)
    with standing(ALL):
        copies_at[(1,)](at(here, there), 8, BLOCK=8)
    assert torch.equal(there, torch.cat([words(48)[32:40], words(16)[8:]]))
    for first, beyond in ((-1, -8), (9, 128)):
        with pytest.raises(Outside, match=f"byte {beyond} of pages"), standing(ALL):
            copies_at[(1,)](at(here, there), first, BLOCK=8)


def test_an_argument_is_not_reached_by_an_address_that_was_read() -> None:
    addresses = words()
    addresses[:2] = at(addresses, addresses)
    with pytest.raises(Outside, match="loads 8 bytes at"), standing(ALL):
        copies_at[(1,)](addresses, 0, BLOCK=8)


def test_what_was_told_of_is_forgotten_when_it_is_gone() -> None:
    memory = np.arange(32)
    whole = torch.from_numpy(memory)
    addresses = at(whole, whole[16:])
    fences.told(whole)
    with standing(ALL):
        copies_at[(1,)](addresses, 0, BLOCK=8)
    del whole
    with pytest.raises(Outside, match="loads 8 bytes at"), standing(ALL):
        copies_at[(1,)](addresses, 0, BLOCK=8)


def test_a_word_that_is_at_no_multiple_of_its_width_is_found() -> None:
    whole = words(32)
    fences.told(whole)
    with pytest.raises(Outside, match="loads 8 bytes of pages at no multiple of 8"), standing(ALL):
        copies_at[(1,)](at(whole, whole) + 4, 0, BLOCK=8)


@pytest.mark.parametrize("kernel", [adds, swaps])
def test_what_changes_a_word_in_one_step_is_fenced_too(kernel: Any) -> None:
    there = words().zero_()
    with standing(ALL):
        kernel[(1,)](there, 15)
    for word in (-1, 16):
        with pytest.raises(Outside, match=f"stores 8 bytes at byte {8 * word}"), standing(ALL):
            kernel[(1,)](there, word)
    assert there.tolist() == [0] * 15 + [1]


def test_a_store_to_what_a_kernel_only_reads_is_found_and_not_made() -> None:
    whole = words(32)
    fences.told(whole)
    others = {"copies": {"here"}, "copies_at": {"addresses"}}
    why = r"stores to (there|pages), which it is to read alone"
    for launch in (copied, lambda: copies_at[(1,)](at(whole, whole[16:]), 0, BLOCK=8)):
        with pytest.raises(Outside, match=why), standing(others):
            launch()
    assert torch.equal(whole, words(32))


def test_what_somebody_caught_is_raised_at_the_end() -> None:
    with pytest.raises(Outside, match="byte 128 of here"), standing(ALL), suppress(Outside):
        copied(first=9)


def test_another_error_of_a_program_stays_what_it_is() -> None:
    with pytest.raises(triton.runtime.errors.InterpreterError, match="power of 2"), standing(ALL):
        copies[(1,)](words(), words(), 0, 0, 9, BLOCK=9)


def test_no_access_of_the_interpreter_goes_around_the_fences() -> None:
    source = textwrap.dedent(inspect.getsource(fences.interpreter.InterpreterBuilder))
    touching = {
        one.name
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.FunctionDef)
        and any(
            isinstance(called, ast.Call)
            and ast.unparse(called.func).startswith("_interpreter.")
            and ast.unparse(called.func).endswith(("load", "store", "cas", "rmw"))
            for called in ast.walk(one)
        )
    }
    assert touching == set(fences.ACCESSES)


def test_of_every_kernel_it_is_said_what_it_writes() -> None:
    modules = (attention_programs, codec_programs, page_programs, strip_programs)
    kernels = {
        name
        for module in modules
        for name, one in vars(module).items()
        if isinstance(one, fences.interpreter.InterpretedFunction) and not name.startswith("_")
    }
    assert kernels == set(fences.WRITES)
