"""Moves of one device in turn, whoever calls: what one leaves behind serves the next."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu.staging import Staging
from kvstore.kernels.gpu.straight import Straight
from kvstore.kernels.gpu.turn import Mark, Turn
from kvstore.kernels.gpu.upload import uploaded
from kvstore.kernels.pieces import Piece, Run
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_straight import places
from tests.kernels.gpu.test_strips import case_with

WAIT_SECONDS = 10.0
needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
LONG = 500_000_000  # of a GPU's cycles: some 0.3 s
MODES = {"inference mode": torch.inference_mode, "none": nullcontext}


def straight(case: Any, there: There) -> Any:
    """Both ways of one mover: from pages to slots, and back."""
    mover = Straight(DEVICE, Turn(DEVICE), case.geometry.payload_bytes)
    about = (places(case), there.pages, case.block_table)
    return lambda: mover.gathered(*about), lambda: mover.scattered(*about)


def staged(case: Any, there: There) -> Any:
    mover, kept = Staging(DEVICE, case.geometry.payload_bytes), dict[int, np.ndarray]()
    blocks = case.blocks
    span = (there.pages, case.block_table, blocks.tokens, blocks.starts)
    run = Run(places(case).moved, *span)

    def keep(piece: Piece) -> None:
        kept[piece.rows.start] = piece.host.copy()

    def give(piece: Piece) -> np.ndarray:
        piece.host[:] = kept[piece.rows.start]
        return np.ones(piece.rows.stop - piece.rows.start, bool)

    return lambda: mover.gathered(run, keep), lambda: mover.scattered(run, give)


@pytest.mark.parametrize("way", [straight, staged])
@pytest.mark.parametrize(
    ("first", "then"), [("inference mode", "none"), ("none", "inference mode")]
)
def test_callers_in_inference_mode_and_others_use_the_same_memory(
    case_of: Any, way: Any, first: str, then: str
) -> None:
    """An engine publishes what it computes there, and a thread beside it loads."""
    case = case_with(case_of, 3, run_bytes=64)
    there = There(case)
    out, back = way(case, there)
    before = there.engine.clone()
    with MODES[first]():
        out()
    there.engine.fill_(0)
    with MODES[then]():
        assert back().all()
    for _, _, _, index in case.strips():
        assert np.array_equal(there.engine.cpu().numpy()[index], before.cpu().numpy()[index])


def test_one_has_its_turn_at_a_time() -> None:
    turn, inside, told = Turn(DEVICE), threading.Event(), list[str]()

    def second() -> None:
        inside.set()
        with turn.taken():
            told.append("second")

    with turn.taken():
        thread = threading.Thread(target=second)
        thread.start()
        assert inside.wait(WAIT_SECONDS)
        thread.join(0.05)
        told.append("first")
    thread.join(WAIT_SECONDS)
    assert told == ["first", "second"]


def test_what_waits_for_another_host_holds_up_nothing_that_goes_straight(case_of: Any) -> None:
    """An engine's blocks in the memory of its own host, while others come from a slow one."""
    case = case_with(case_of, 3, run_bytes=64)
    there, mover = There(case), Staging(DEVICE, case.geometry.payload_bytes)
    blocks = case.blocks
    about = (there.pages, case.block_table)
    run = Run(places(case).moved, *about, blocks.tokens, blocks.starts)
    asked, answered = threading.Event(), threading.Event()

    def slow(piece: Piece) -> np.ndarray:
        asked.set()
        assert answered.wait(WAIT_SECONDS)
        return np.zeros(piece.rows.stop - piece.rows.start, bool)

    loading = threading.Thread(target=mover.scattered, args=(run, slow))
    loading.start()
    assert asked.wait(WAIT_SECONDS)
    storing = threading.Thread(target=mover.straight.gathered, args=(places(case), *about))
    storing.start()
    storing.join(WAIT_SECONDS / 2)
    held_up = storing.is_alive()
    answered.set()
    loading.join(WAIT_SECONDS)
    storing.join(WAIT_SECONDS)
    assert not held_up


@needs_gpu
def test_what_is_uploaded_waits_for_nothing_and_is_there_for_what_follows() -> None:
    turn, mark = Turn(DEVICE), Mark(DEVICE)
    rows = [np.arange(row, row + 1000) for row in range(20)]
    for warm in (False, True):  # for memory that is pinned anew, and programs, CUDA does wait
        with turn.taken():
            torch.cuda._sleep(LONG)
            mark.set()
            there = [uploaded([row], DEVICE)[0] + 1 for row in rows]
            waited = mark._event.query()  # type: ignore[union-attr]
        assert not (warm and waited), "the stream was waited for"
        for row, found in zip(rows, there, strict=True):
            assert np.array_equal(found.cpu().numpy(), row + 1)


@needs_gpu
def test_streams_of_a_turn_wait_for_the_callers_not_for_each_other_and_its_end_for_both() -> None:
    turn, marks = Turn(DEVICE), [Mark(DEVICE), Mark(DEVICE)]
    one = torch.zeros(1, device=DEVICE)
    one += one + 1  # programs that are read now are not waited for below
    one -= 1
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    one += 1  # as an engine's page, which is not there yet
    with turn.taken():
        turn.use(1)
        two = one + 1
        marks[1].set()
        turn.use(0)
        marks[0].wait()  # which was never set
        assert not marks[1]._event.query()  # type: ignore[union-attr]
        marks[1].wait()
        torch.cuda._sleep(LONG)
        marks[0].set()
        turn.use(1)
        two += 1
        marks[1].set()
        marks[1].wait()
        assert not marks[0]._event.query(), "one waited for the other"  # type: ignore[union-attr]
    assert marks[0]._event.query()  # type: ignore[union-attr]
    assert torch.cuda.current_stream() == torch.cuda.default_stream(), "the caller's own again"
    assert two.item() == 3
