"""The bench of strips on the CPU, a small one."""

from __future__ import annotations

from bench import strips
from bench.strips import Sizes

SMALL = Sizes(bytes=1 << 18, layers=2, kv_heads=2, run_bytes=64, block_tokens=(16, 32))


def test_both_orders_are_moved_both_ways_and_held_against_a_copy() -> None:
    report = strips.run(2, lambda text: None, SMALL)
    assert [row.name for row in report.rows] == [
        f"{way}, {order}, blocks of {tokens} tokens"
        for tokens in (16, 32)
        for order in ("HND", "NHD")
        for way in ("gather", "scatter")
    ]
    assert all(row.ratio and row.counted and row.sizes["bytes"] == 1 << 18 for row in report.rows)
