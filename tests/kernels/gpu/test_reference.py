"""The reference against numpy's account of where every byte goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash

from kvstore.kernels.gpu import reference
from tests.kernels.gpu.machine import There


@pytest.mark.parametrize("seed", range(12))
def test_it_moves_and_hashes_what_belongs_to_strips_and_no_byte_besides(
    case_of: Any, seed: int
) -> None:
    case = case_of(seed)
    there, expected = There(case), case.arena.copy()
    for i, row, place, index in case.strips():
        expected[place] = case.engine[index]
        case.arena[place] = case.engine[index]
        digest = xxhash.xxh3_64_intdigest(case.engine[index])
        entry = int(case.blocks.table_offsets[i]) + 8 * row
        expected[entry : entry + 8] = np.frombuffer(digest.to_bytes(8, "little"), np.uint8)
    made = reference.gather(there.arena, there.engine, *there.asked)
    assert (made.numpy() == case.arena).all()
    whole = reference.entered(made, there.engine, *there.asked)
    assert (whole.numpy() == expected).all()
    back = reference.scatter(whole, there.engine.fill_(0), *there.asked).numpy()
    moved = np.unique(np.concatenate([index for *_, index in case.strips()]))
    assert (back[moved] == case.engine[moved]).all()
    back[moved] = 0
    assert not back.any()
