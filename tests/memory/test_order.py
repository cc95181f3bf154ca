"""What others see of memory that is shared, they see in the order in which it was written.

Processors that keep it anyway, such as these tests may run on, cannot show that it holds. What is
shown is that whatever must come first has been done by the fence, and nothing that must follow.
"""

from __future__ import annotations

import random

import pytest

from kvstore.layout import GENERATION_OFFSET, TABLE_OFFSET
from tests.memory.test_strips import LAYOUT, Desk

STRIP_BYTES = 8 * LAYOUT.token_bytes


def test_a_strips_bytes_come_before_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, strips = Desk(LAYOUT, 8), range(LAYOUT.strips)
    first = desk.slot.offset + LAYOUT.head_bytes
    before: dict[int, bytes] = {}  # what lay in each strip at the last fence before its entry

    def look() -> None:
        for strip, entry in zip(strips, desk.heads.strip_hashes(desk.slot, strips), strict=True):
            if not entry:
                before[strip] = bytes(desk.view[first + strip * STRIP_BYTES :][:STRIP_BYTES])

    monkeypatch.setattr("kvstore.memory.strips.fence", look)
    desk.write(LAYOUT.whole, random.Random(0))
    assert all(desk.heads.strip_hashes(desk.slot, strips))
    assert b"".join(before[strip] for strip in strips) == desk.payload


def test_a_slots_generation_comes_before_what_the_next_owner_writes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, seen = Desk(LAYOUT, 8), list[int]()
    desk.write(LAYOUT.whole, random.Random(0))
    desk.seal()
    before = bytes(desk.view[desk.slot.offset + TABLE_OFFSET :][: 8 * LAYOUT.strips])

    def look() -> None:
        head = desk.view[desk.slot.offset :]
        seen.append(int.from_bytes(head[GENERATION_OFFSET:][:8], "little"))
        assert head[TABLE_OFFSET:][: 8 * LAYOUT.strips] == before

    monkeypatch.setattr("kvstore.memory.heads.fence", look)
    desk.slot.generation += 1
    desk.heads.fill(desk.slot, LAYOUT)
    assert seen == [desk.slot.generation]
    assert desk.heads.written(desk.slot, LAYOUT, LAYOUT.whole) is None
