"""The bench of puts into a full pool, a small one."""

from __future__ import annotations

import pytest

from bench import full
from bench.full import Sizes
from kvstore.limits import KiB

SMALL = Sizes(blocks=40, block_bytes=64 * KiB, dram="8MiB", slab="1MiB")


def test_a_put_into_a_full_pool_is_held_against_one_where_there_is_room() -> None:
    report = full.run(2, lambda text: None, SMALL)
    (row,) = report.rows
    assert row.name == "put of 40 x 64 KiB into a full pool" and row.counted and row.runs == 2
    assert row.limit and row.also["us_a_block"] == pytest.approx(25 * row.value)
    assert row.also["us_a_block_with_room"] == pytest.approx(25 * row.limit)
