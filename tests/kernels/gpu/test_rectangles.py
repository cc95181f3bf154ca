"""Runs that are copied in one call: they are the same runs, none over another's bytes, and no other
byte is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstore.kernels.gpu import rectangles
from kvstore.kernels.gpu.rectangles import Rectangle, copied_in, copied_out
from tests.gpu import DEVICE

Runs = list[tuple[int, int, int]]
GiB = 1 << 30


def runs_of(one: Rectangle) -> Runs:
    each = range(one.count)
    return [(one.host + i * one.host_step, one.here + i * one.here_step, one.size) for i in each]


@st.composite
def laid_out(draw: st.DrawFn) -> Runs:
    """Runs that do not meet, in no order; many of them alike and equally far apart."""
    found, host, here = Runs(), 0, 0
    for _ in range(draw(st.integers(0, 6))):
        size, count = draw(st.sampled_from([8, 24, 64])), draw(st.integers(1, 5))
        gaps = draw(st.tuples(*2 * [st.sampled_from([0, 8, 40])]))
        for _ in range(count):
            found.append((host, here, size))
            host, here = host + size + gaps[0], here + size + gaps[1]
    return draw(st.permutations(found)) if draw(st.booleans()) else found


@given(laid_out())
def test_rectangles_are_the_runs_that_were_told_in_their_order(runs: Runs) -> None:
    found = rectangles.rectangles(runs)
    assert [run for one in found for run in runs_of(one)] == runs
    assert all(min(one.host_step, one.here_step) >= one.size for one in found if one.count > 1)


def test_blocks_side_by_side_are_one_and_a_block_elsewhere_is_another() -> None:
    blocks = [(4_096 + 9_000 * i, 8_000 * i, 8_000) for i in (0, 1, 2, 3)]
    assert rectangles.rectangles(blocks) == [Rectangle(4_096, 0, 8_000, 4, 9_000, 8_000)]
    blocks.insert(2, (1_000_000, 32_000, 8_000))
    assert [one.count for one in rectangles.rectangles(blocks)] == [2, 1, 2]


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([(0, 0, 64), (0, 64, 64)], id="again the same"),
        pytest.param([(640, 0, 64), (0, 64, 64)], id="backwards"),
        pytest.param([(0, 0, 64), (32, 64, 64)], id="one over another"),
        pytest.param([(0, 0, 64), (64, 64, 32)], id="of another size"),
        pytest.param([(0, 0, 64), (64, 1 << 31, 64)], id="further apart than CUDA takes"),
        pytest.param([(GiB - 64, 0, 64), (GiB, 64, 64)], id="in another pinned piece"),
    ],
)
def test_what_makes_no_rectangle_is_copied_by_itself(runs: Runs) -> None:
    assert rectangles.rectangles(runs) == [Rectangle(*run) for run in runs]


@given(laid_out())
def test_a_copy_there_and_back_moves_these_bytes_and_no_other(runs: Runs) -> None:
    dice = np.random.default_rng(len(runs))
    room = max((max(host, here) + size for host, here, size in runs), default=0) + 100
    data = torch.from_numpy(dice.integers(0, 256, room).astype(np.uint8))
    pinned = DEVICE.type == "cuda"
    host, back = (torch.full((room,), 7, dtype=torch.uint8, pin_memory=pinned) for _ in range(2))
    here = torch.full((room,), 9, dtype=torch.uint8, device=DEVICE)
    host.copy_(data)
    for one in rectangles.rectangles(runs):
        copied_in(one, host, here)
    for one in rectangles.rectangles(runs):
        copied_out(one, here, back)
    if pinned:
        torch.cuda.synchronize()
    wanted_here, wanted_back = np.full(room, 9, np.uint8), np.full(room, 7, np.uint8)
    for there, its, size in runs:
        wanted_here[its : its + size] = data.numpy()[there : there + size]
        wanted_back[there : there + size] = data.numpy()[there : there + size]
    assert np.array_equal(here.cpu().numpy(), wanted_here)
    assert np.array_equal(back.numpy(), wanted_back)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU here")
def test_what_cuda_refuses_is_an_error_that_says_what_was_asked() -> None:
    here = torch.zeros(64, dtype=torch.uint8, device=DEVICE)
    nowhere = Rectangle(0, 0, 64, 3, host_step=32, here_step=64)  # runs over each other
    with pytest.raises(RuntimeError, match="cuMemcpy2DAsync of Rectangle"):
        copied_in(nowhere, torch.zeros(64, dtype=torch.uint8, pin_memory=True), here)
