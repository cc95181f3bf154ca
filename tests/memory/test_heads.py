"""Heads of many slots at once, at the cost of a few: a call may name thousands of large tables."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot
from kvstore.layout import TABLE_OFFSET, Fragment, SlotLayout
from kvstore.limits import MiB
from kvstore.memory.heads import Heads

LAYOUT = SlotLayout(layers=64, kv_heads=64, block_tokens=1, parts=1, run_bytes=8)  # 32 KiB a table
COUNT = 400
HELD_MAX = 6 * MiB  # where all tables have 12.5 MiB

Asked = Callable[[Heads, list[Slot]], Any]


def many() -> tuple[Heads, list[Slot]]:
    heads = Heads(memoryview(bytearray(COUNT * LAYOUT.slot_bytes)))
    slots = [
        Slot(i, i * LAYOUT.slot_bytes, (bytes(32), 0), generation=i + 1, key=bytes([i % 256]) * 32)
        for i in range(COUNT)
    ]
    return heads, slots


def written(heads: Heads, slots: list[Slot], but: int = -1) -> None:
    """Every strip of each, but the last one of slot `but`."""
    for slot in slots:
        strips = LAYOUT.strips - (slot.number == but)
        first = (slot.offset + TABLE_OFFSET) // 8
        heads._words[first : first + strips] = slot.number + 1


@pytest.mark.parametrize(
    "asked",
    [
        lambda heads, slots: heads.fill_all(slots, LAYOUT),
        lambda heads, slots: heads.roots(slots, LAYOUT),
        lambda heads, slots: heads.first_unwritten(slots, LAYOUT, LAYOUT.whole),
        lambda heads, slots: heads.layers_written(slots, LAYOUT, LAYOUT.whole),
        lambda heads, slots: heads.none_written(slots, LAYOUT, LAYOUT.whole),
    ],
    ids=["fill_all", "roots", "first_unwritten", "layers_written", "none_written"],
)
def test_what_is_asked_of_many_tables_holds_few_of_them_at_once(asked: Asked) -> None:
    heads, slots = many()
    written(heads, slots)
    tracemalloc.start()
    try:
        asked(heads, slots)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < HELD_MAX


def test_many_slots_say_what_each_says_by_itself() -> None:
    heads, slots = many()
    heads.fill_all(slots, LAYOUT)
    assert heads.none_written(slots, LAYOUT, LAYOUT.whole)
    assert heads.first_unwritten(slots, LAYOUT, LAYOUT.whole) == (0, Fragment(0, 1, 0, 1))
    assert heads.layers_written(slots, LAYOUT, LAYOUT.whole) == [0] * COUNT
    written(heads, slots, but=COUNT - 2)
    assert not heads.none_written(slots, LAYOUT, LAYOUT.whole)
    assert heads.first_unwritten(slots, LAYOUT, LAYOUT.whole) == (
        COUNT - 2,
        Fragment(LAYOUT.layers - 1, 1, LAYOUT.kv_heads - 1, 1),
    )
    layers = [LAYOUT.layers - (slot.number == COUNT - 2) for slot in slots]
    assert heads.layers_written(slots, LAYOUT, LAYOUT.whole) == layers
    assert heads.roots(slots, LAYOUT) == [heads.root(slot, LAYOUT) for slot in slots]
    assert len({*heads.roots(slots, LAYOUT)}) == COUNT
