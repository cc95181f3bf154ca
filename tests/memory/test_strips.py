"""Bytes laid into a slot come back as they went in, or not at all."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Slot, State
from kvstore.layout import IDENTITY_OFFSET, SLOT_MAGIC, TABLE_OFFSET, Fragment, SlotLayout
from kvstore.limits import PUT_CHUNK_BYTES_MAX, MiB
from kvstore.memory.arena import Arena
from kvstore.memory.heads import Heads
from kvstore.memory.strips import Damaged, StripWriter, chunks, intact, strip_hash

LAYOUT = SlotLayout(layers=3, kv_heads=2, block_tokens=8, parts=2, run_bytes=24)
WIDE = SlotLayout(layers=2, kv_heads=1, block_tokens=600, parts=2, run_bytes=1024)  # > 1 MiB


class Desk:
    """An arena, a slot in it that is filling, and a writer's bytes for it."""

    def __init__(self, layout: SlotLayout, tokens: int, seed: int = 1) -> None:
        self.arena, self.layout = Arena.create(8 * MiB), layout
        self.view = self.arena.view
        self.heads = Heads(self.view)
        self.slot = Slot(3, layout.slot_bytes, (b"n" * 32, 5), State.FILLING, 17)
        self.slot.key, self.slot.tokens = b"k" * 32, tokens
        self.arena.bytes[:] = 0xAA  # what the last owner left
        self.heads.fill(self.slot, layout)
        self.payload = np.random.default_rng(seed).bytes(layout.block_bytes(tokens))

    def part(self, f: Fragment) -> bytes:
        size = self.slot.tokens * self.layout.token_bytes
        rows = [
            (layer * self.layout.kv_heads + head) * size
            for layer in range(f.layer_first, f.layer_first + f.layers)
            for head in range(f.head_first, f.head_first + f.heads)
        ]
        return b"".join(self.payload[at : at + size] for at in rows)

    def write(self, fragment: Fragment, dice: random.Random) -> None:
        writer = StripWriter(self.view, self.heads, self.slot, self.layout, fragment)
        data = self.part(fragment)
        assert writer.missing == len(data)
        while data:
            cut = dice.choice([1, 7, 100, 10_000, len(data)])
            writer.write(data[:cut])
            data = data[cut:]
        assert writer.missing == 0

    def seal(self) -> None:
        self.slot.root = self.heads.root(self.slot, self.layout)
        self.slot.move(State.SEALED)
        self.heads.seal(self.slot)

    def read(self, fragment: Fragment) -> bytes:
        return b"".join(chunks(self.view, self.heads, self.slot, self.layout, fragment))

    def intact(self) -> bool:
        return intact(self.view, self.heads, self.slot, self.layout)


def fragments(layout: SlotLayout) -> Iterator[Fragment]:
    for layer in range(layout.layers):
        for count in range(1, layout.layers - layer + 1):
            for head in range(layout.kv_heads):
                yield Fragment(layer, count, head, layout.kv_heads - head)


@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_what_is_written_in_pieces_of_any_size_is_read_back_whole_or_in_part(tokens: int) -> None:
    for seed in range(5):
        desk, dice = Desk(LAYOUT, tokens, seed), random.Random(seed)
        parts = [Fragment(layer, 1, head, 1) for layer in range(3) for head in range(2)]
        dice.shuffle(parts)
        for part in parts:
            assert desk.heads.unwritten(desk.slot, LAYOUT, LAYOUT.whole) is not None
            assert desk.heads.written(desk.slot, LAYOUT, part) is None
            desk.write(part, dice)
            assert desk.heads.unwritten(desk.slot, LAYOUT, part) is None
            assert desk.heads.written(desk.slot, LAYOUT, part) == part
        desk.seal()
        assert desk.intact() and desk.read(LAYOUT.whole) == desk.payload
        for fragment in fragments(LAYOUT):
            assert desk.read(fragment) == desk.part(fragment)


def test_nothing_outside_the_slot_is_touched() -> None:
    desk = Desk(LAYOUT, 8)
    desk.write(LAYOUT.whole, random.Random(0))
    desk.seal()
    start, end = desk.slot.offset, desk.slot.offset + LAYOUT.slot_bytes
    assert (desk.arena.bytes[:start] == 0xAA).all() and (desk.arena.bytes[end:] == 0xAA).all()


def test_a_half_written_strip_is_not_yet_written() -> None:
    desk = Desk(LAYOUT, 8)
    writer = StripWriter(desk.view, desk.heads, desk.slot, LAYOUT, LAYOUT.whole)
    size = 8 * LAYOUT.token_bytes
    writer.write(desk.payload[: 3 * size - 1])
    assert desk.heads.unwritten(desk.slot, LAYOUT, LAYOUT.whole) == Fragment(1, 1, 0, 1)
    writer.write(desk.payload[3 * size - 1 : 3 * size])
    assert desk.heads.unwritten(desk.slot, LAYOUT, LAYOUT.whole) == Fragment(1, 1, 1, 1)


def test_more_bytes_than_the_fragment_holds_are_a_bug_of_the_caller() -> None:
    desk = Desk(LAYOUT, 8)
    writer = StripWriter(desk.view, desk.heads, desk.slot, LAYOUT, Fragment(0, 1, 0, 1))
    with pytest.raises(AssertionError, match="more bytes"):
        writer.write(bytes(writer.missing + 1))


def test_pieces_fit_a_message_and_none_is_empty() -> None:
    desk = Desk(WIDE, 600)
    desk.write(WIDE.whole, random.Random(0))
    sizes = [len(p) for p in chunks(desk.view, desk.heads, desk.slot, WIDE, WIDE.whole)]
    assert sum(sizes) == len(desk.payload) and min(sizes) > 0
    assert max(sizes) <= PUT_CHUNK_BYTES_MAX
    assert desk.read(WIDE.whole) == desk.payload


def test_every_flipped_bit_of_payload_table_and_identity_is_found() -> None:
    desk = Desk(LAYOUT, 5)
    desk.write(LAYOUT.whole, random.Random(0))
    desk.seal()
    payload = desk.slot.offset + LAYOUT.head_bytes
    lived = [
        payload + strip * LAYOUT.strip_stride + at
        for strip in range(LAYOUT.strips)
        for at in range(5 * LAYOUT.token_bytes)
    ]
    head = range(IDENTITY_OFFSET, TABLE_OFFSET + 8 * LAYOUT.strips)
    dice = random.Random(3)
    for at in [*dice.sample(lived, 200), *(desk.slot.offset + i for i in head)]:
        bit = 1 << dice.randrange(8)
        desk.arena.bytes[at] ^= bit
        assert not desk.intact(), f"byte {at - desk.slot.offset} of the slot"
        desk.arena.bytes[at] ^= bit
    assert desk.intact()


def test_the_gap_behind_a_short_strip_is_nobodys() -> None:
    desk = Desk(LAYOUT, 5)
    desk.write(LAYOUT.whole, random.Random(0))
    desk.seal()
    desk.arena.bytes[desk.slot.offset + LAYOUT.head_bytes + 5 * LAYOUT.token_bytes] ^= 1
    assert desk.intact() and desk.read(LAYOUT.whole) == desk.payload


def test_a_damaged_strip_is_never_given_out() -> None:
    desk = Desk(LAYOUT, 8)
    desk.write(LAYOUT.whole, random.Random(0))
    desk.arena.bytes[desk.slot.offset + LAYOUT.head_bytes + 3 * LAYOUT.strip_stride] ^= 1
    given = b""
    with pytest.raises(Damaged):
        for piece in chunks(desk.view, desk.heads, desk.slot, LAYOUT, LAYOUT.whole):
            given += piece
    assert desk.payload.startswith(given)
    assert len(given) <= 3 * 8 * LAYOUT.token_bytes
    fine = Fragment(2, 1, 0, 2)
    assert desk.read(fine) == desk.part(fine)


def test_a_hash_of_zero_is_kept_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strip_hash(memoryview(b"abc")) == xxhash.xxh3_64_intdigest(b"abc")
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data: 0)
    assert strip_hash(memoryview(b"abc")) == 1, "0 in the table means not written"


def test_the_root_is_over_identity_and_table() -> None:
    desk = Desk(LAYOUT, 8)
    desk.write(LAYOUT.whole, random.Random(0))
    size = 8 * LAYOUT.token_bytes
    table = [xxhash.xxh3_64_intdigest(desk.payload[i * size : (i + 1) * size]) for i in range(6)]
    said = b"k" * 32 + b"n" * 32 + struct.pack("<IIQ", 5, 8, 0) + desk.slot.parent.ljust(32, b"\0")
    identity = (said + tenant_digest(desk.slot.tenant)).ljust(192, b"\0")
    wanted = xxhash.xxh3_128_digest(identity + struct.pack("<6Q", *table))
    assert desk.heads.root(desk.slot, LAYOUT) == wanted


def test_a_head_says_what_the_node_believes_from_fill_to_the_next_owner() -> None:
    desk = Desk(LAYOUT, 8)
    head, slot = desk.arena.bytes[desk.slot.offset :], desk.slot

    def said() -> tuple[int, int, int]:
        return struct.unpack("<QQI", head[:20].tobytes())

    assert said() == (SLOT_MAGIC, 17, State.FILLING)
    desk.heads.check(slot)
    desk.write(LAYOUT.whole, random.Random(0))
    desk.seal()
    assert said() == (SLOT_MAGIC, 17, State.SEALED)
    assert head[32:48].tobytes() == slot.root != bytes(16)
    desk.heads.check(slot)
    slot.move(State.DOOMED)
    slot.generation = 18
    with pytest.raises(AssertionError, match="the head of slot 3 differs"):
        desk.heads.check(slot)
    desk.heads.mark(slot)
    assert said() == (SLOT_MAGIC, 18, State.DOOMED)
    desk.heads.check(slot)
    slot.state, slot.generation, slot.root = State.FILLING, 19, b""
    desk.heads.fill(slot, LAYOUT)
    assert head[32:48].tobytes() == bytes(16), "a new block begins without a root"
    assert not head[TABLE_OFFSET : TABLE_OFFSET + 8 * LAYOUT.strips].any()
