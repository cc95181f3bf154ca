"""Blocks by chain: whatever is asked for comes once, after what stands before it."""

from __future__ import annotations

import random

import pytest

from kvstore.core.chains import parts
from kvstore.core.lifecycle import Slot


def forest(dice: random.Random, count: int) -> dict[bytes, Slot]:
    """Blocks behind others by chance, some behind blocks that are not held."""
    slots: dict[bytes, Slot] = {}
    for number in range(count):
        key = b"%05d" % number
        parent = dice.choice([b"", b"lost%d" % dice.randrange(3), *slots])
        slots[key] = Slot(number, 0, (b"n", 0), key=key, parent=parent, tenant="t")
    return slots


@pytest.mark.parametrize("seed", range(200))
def test_every_held_block_that_is_asked_for_comes_once_after_what_stands_before(seed: int) -> None:
    dice = random.Random(seed)
    slots = forest(dice, dice.randrange(1, 40))
    asked = [*dice.sample(sorted(slots), dice.randrange(0, len(slots) + 1)), b"nobody"]
    dice.shuffle(asked)
    found = parts(slots.get, asked)
    assert sorted(key for part in found for key in part.keys) == sorted(set(asked) - {b"nobody"})
    lines = [key for part in found for key in part.line]
    assert len(set(lines)) == len(lines)
    for part in found:
        seen: set[bytes] = set()
        for key in part.line:
            assert slots[key].parent in seen or slots[key].parent not in slots
            seen.add(key)
        assert [key for key in part.line if key in asked] == part.keys
        assert part.tip == slots[part.keys[0]].parent
        assert {top(slots, key) for key in part.line} == {part.first}


def top(slots: dict[bytes, Slot], key: bytes) -> bytes:
    """The first block of a chain, or the first that is missing from it."""
    while (parent := slots[key].parent) in slots:
        key = parent
    return slots[key].parent or key


def test_blocks_that_stand_alone_are_parts_of_their_own() -> None:
    slots = {key: Slot(0, 0, (b"n", 0), key=key, tenant="t") for key in (b"a", b"b")}
    assert [part.first for part in parts(slots.get, [b"b", b"a"])] == [b"b", b"a"]


def test_blocks_that_stand_before_each_other_are_gone_through_once() -> None:
    """As nobody computes them, but whoever puts blocks says what stands before each."""
    before = {b"a": b"b", b"b": b"c", b"c": b"a", b"own": b"own"}
    slots = {
        key: Slot(number, 0, (b"n", 0), key=key, parent=parent, tenant="t")
        for number, (key, parent) in enumerate(before.items())
    }
    looks: list[bytes] = []

    def peek(key: bytes) -> Slot | None:
        looks.append(key)
        assert len(looks) < 100, "it goes round for ever"
        return slots.get(key)

    found = parts(peek, [b"b", b"own", b"a"])
    assert [part.keys for part in found] == [[b"a", b"b"], [b"own"]]
    assert [part.line for part in found] == [[b"a", b"c", b"b"], [b"own"]]
