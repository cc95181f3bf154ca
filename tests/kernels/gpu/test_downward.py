"""Bytes of HBM on their way down to memory that a device is told of piece by piece."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import downward
from kvstore.kernels.gpu.registered import Registered
from kvstore.memory.arena import Arena
from tests.gpu import DEVICE

PIECE, POISON = 1 << 20, 0xA5


@pytest.mark.parametrize("told", [True, False], ids=["told of", "not yet"])
def test_what_lies_in_several_pieces_comes_down_whole_and_no_byte_besides(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    arena = Arena.create(4 * PIECE)
    arena.bytes[:] = POISON
    there = torch.arange(3 * PIECE, dtype=torch.int32, device=DEVICE).to(torch.uint8)
    region = SimpleNamespace(bytes=there, device=DEVICE)
    in_pieces = partial(Registered, piece_bytes=PIECE)
    monkeypatch.setattr(downward, "Registered", in_pieces)
    down = downward.Downward(region, arena.bytes)  # type: ignore[arg-type]
    if told and down._known._thread is not None:
        down._known._thread.join()
    want = np.full(4 * PIECE, POISON, np.uint8)
    for here, first, size in [(3, PIECE - 5, 2 * PIECE + 9), (0, 7, 11), (1, 4 * PIECE - 1, 1)]:
        down.copy(here, first, size)
        want[first : first + size] = there[here : here + size].cpu().numpy()
        assert np.array_equal(arena.bytes, want)
    down.close()
    assert arena.close(), "it is held by nobody"
