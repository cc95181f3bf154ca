"""Pages to slots and back on a GPU: every byte that should move does, and no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvstore.kernels.gpu import pages, reference, strips
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There

POISON = 0xA5
CASES = range(24)


@pytest.mark.parametrize("seed", CASES)
def test_a_gather_writes_every_strip_and_no_byte_besides(case_of: Any, seed: int) -> None:
    there = There(case_of(seed))
    engine = there.engine.clone()
    expected = reference.gather(there.arena, there.engine, *there.asked)
    pages.gather(there.arena, *there.asked)
    assert torch.equal(there.arena.cpu(), expected)
    assert torch.equal(there.engine, engine)


@pytest.mark.parametrize("seed", CASES)
def test_a_scatter_writes_every_token_of_the_engine_and_no_byte_besides(
    case_of: Any, seed: int
) -> None:
    there = There(case_of(seed))
    there.arena[:] = reference.gather(there.arena, there.engine, *there.asked).to(DEVICE)
    arena = there.arena.clone()
    there.engine.fill_(POISON)
    expected = reference.scatter(there.arena, there.engine, *there.asked)
    pages.scatter(there.arena, *there.asked)
    assert torch.equal(there.engine.cpu(), expected)
    assert torch.equal(there.arena, arena)


WRONG = {
    "a payload outside the arena": (
        lambda case: case.blocks.payload_offsets.__setitem__(0, len(case.arena)),
        "payload_offsets",
    ),
    "a page that is not there": (
        lambda case: case.block_table.__setitem__(slice(None), case.pages.page_count),
        "block_table",
    ),
    "more tokens than a block has": (
        lambda case: case.blocks.tokens.__setitem__(0, case.geometry.block_tokens + 1),
        "tokens",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_reaches_outside_is_refused_and_nothing_moves(case_of: Any, what: str) -> None:
    case = case_of(7)
    harm, why = WRONG[what]
    harm(case)
    there = There(case)
    before = there.arena.clone(), there.engine.clone()
    for move in (pages.gather, pages.scatter, strips.gather, strips.scatter):
        with pytest.raises(ValueError, match=why):
            move(there.arena, *there.asked)
    assert torch.equal(there.arena, before[0]) and torch.equal(there.engine, before[1])
