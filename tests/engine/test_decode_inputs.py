"""What a decode step reads is what its sequences are, and lies where it lay for the last one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvstore.engine.batch import Batch, Span
from kvstore.engine.cache import PagedKV
from kvstore.engine.config import ModelConfig
from kvstore.engine.decode_inputs import DecodeInputs

CONFIG = ModelConfig("LlamaForCausalLM", 64, 96, 2, 4, 2, 16, 100, 512, 1e-6)
FLAT = ("tokens", "positions", "pages", "offsets")


@pytest.fixture
def inputs() -> DecodeInputs:
    return DecodeInputs(PagedKV(CONFIG, pages=9, page_tokens=16), rows_max=5, positions_max=70)


def span(token: int, start: int, *pages: int) -> Span:
    return Span([token], start, np.array(pages, np.int32), True)


STEPS = [
    [span(7, 0, 3), span(8, 69, 0, 1, 2, 4, 5), span(9, 16, 6, 7)],
    [span(1, 15, 8)],
    [span(2, 31, 1, 0), span(3, 32, 2, 5, 4), span(4, 1, 3), span(5, 2, 6), span(6, 3, 7)],
]


@pytest.mark.parametrize("rows", [3, 4, 5])
def test_rows_hold_what_a_batch_of_the_step_would_and_nobody_behind_it(
    inputs: DecodeInputs, rows: int
) -> None:
    held = inputs.rows(rows)
    for step in (one for one in STEPS if len(one) <= rows):
        inputs.write(step, rows)
        count, batch = len(step), Batch(step, 16)
        for name in FLAT:
            assert torch.equal(getattr(held, name)[:count], getattr(batch, name)), name
        assert held.facts.tolist() == [
            *([row, 1, one.start] for row, one in enumerate(step)),
            *[[0, 0, 0]] * (rows - count),
        ]
        for row, one in zip(held.block_tables.tolist(), step, strict=False):
            assert row[: len(one.pages)] == one.pages.tolist()
        assert held.pages[count:].tolist() == [9] * (rows - count), "the page that is nobody's"
        assert not held.tokens[count:].any() and not held.offsets[count:].any()
        assert held.logit_rows.tolist() == list(range(rows))


def test_rows_of_every_count_begin_at_the_same_places(inputs: DecodeInputs) -> None:
    def places(count: int) -> list[int]:
        rows = inputs.rows(count)
        every = [getattr(rows, name) for name in (*FLAT, "logit_rows", "facts", "block_tables")]
        assert all(one.is_contiguous() and len(one) == count for one in every)
        return [one.data_ptr() for one in every]

    assert len({tuple(places(count)) for count in (1, 2, 5)}) == 1
    before = places(5)
    inputs.write(STEPS[2], 5)
    assert places(5) == before


def test_block_tables_have_room_for_the_longest_sequence_there_may_be(inputs: DecodeInputs) -> None:
    assert inputs.rows(2).block_tables.shape == (2, 5)
    assert inputs.rows(2).positions_max == 70
