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
from kvstore.kernels.gpu.turn import Turn
from kvstore.kernels.pieces import Piece, Run
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_straight import places
from tests.kernels.gpu.test_strips import case_with

WAIT_SECONDS = 10.0
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
