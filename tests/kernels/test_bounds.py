"""A size that is wrong is refused by its name, before a byte moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvstore.kernels.shapes import Geometry
from kvstore.kernels.strips import Blocks, roots


def test_an_empty_batch_is_a_batch(case_of):
    case = case_of(1)
    nothing = np.zeros(0, np.int64)
    case.blocks = Blocks(nothing, nothing, nothing.astype(np.int32), nothing)
    case.gather()
    assert len(case.scatter()) == len(case.verify()) == len(case.written()) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("payload_offsets", lambda c: c.arena.size - c.geometry.payload_bytes + 1),
        ("payload_offsets", lambda c: -1),
        ("table_offsets", lambda c: c.arena.size),
        ("table_offsets", lambda c: 4),
        ("tokens", lambda c: 0),
        ("tokens", lambda c: c.geometry.block_tokens + 1),
        ("starts", lambda c: -1),
        ("starts", lambda c: len(c.block_table) * c.pages.page_tokens),
        ("starts", lambda c: 2**62),
    ],
)
def test_a_column_out_of_range_is_refused_by_name(case_of, name, change):
    case = case_of(7)
    column = getattr(case.blocks, name).copy()
    column[0] = change(case)
    case.blocks = dataclasses.replace(case.blocks, **{name: column})
    before = case.arena.copy(), case.engine.copy()
    for call in (case.gather, case.scatter):
        with pytest.raises(ValueError, match=name):
            call()
    assert (case.arena == before[0]).all() and (case.engine == before[1]).all()


def test_a_page_that_is_not_there_is_refused_only_where_a_block_covers_it(case_of):
    case = case_of(7)
    case.gather()  # the entry past the sequence is -1 already
    first = int(case.blocks.starts[0]) // case.pages.page_tokens
    for page in (-1, case.pages.page_count):
        case.block_table[first] = page
        with pytest.raises(ValueError, match="block_table"):
            case.gather()


@pytest.mark.parametrize("at", range(4))
def test_a_range_outside_the_block_is_refused(case_of, at):
    case = case_of(7)
    for bad in (-1, 99):
        span = list(case.span)
        span[at] = bad
        case.span = tuple(span)
        for call in (case.gather, case.scatter, case.verify, case.written):
            with pytest.raises(ValueError, match="layers" if at < 2 else "heads"):
                call()


def test_layer_addresses_must_be_one_a_layer(case_of):
    case = case_of(7)
    more = np.append(case.pages.layer_addresses, np.uint64(0))
    case.pages = dataclasses.replace(case.pages, layer_addresses=more)
    with pytest.raises(ValueError, match="layer_addresses"):
        case.gather()


def test_a_root_outside_the_arena_is_refused():
    arena = np.zeros(100, np.uint8)
    for offsets, size, name in (([1], 100, "offsets"), ([-1], 4, "offsets"), ([0], 101, "size")):
        with pytest.raises(ValueError, match=name):
            roots(arena, np.array(offsets), size)


def test_an_arena_is_bytes_in_one_run():
    for arena in (np.zeros(16, np.int8), np.zeros((4, 4), np.uint8), np.zeros(32, np.uint8)[::2]):
        with pytest.raises(ValueError, match="arena"):
            roots(arena, np.array([0]), 1)


def test_a_geometry_has_something_in_every_dimension():
    with pytest.raises(ValueError, match="kv_heads"):
        Geometry(1, 0, 16, 2, 256)
