"""Where bytes lie: nothing overlaps, and fragments are sets of strips."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from kvstore.codec import Coding
from kvstore.core.lifecycle import Slot
from kvstore.errors import OutOfRange
from kvstore.layout import (
    GENERATION_OFFSET,
    HEAD,
    IDENTITY_OFFSET,
    PLACE_OFFSET,
    ROOT_OFFSET,
    SLOT_ALIGN,
    STATE_OFFSET,
    TABLE_OFFSET,
    Fragment,
    SlotLayout,
)
from kvstore.memory.strips import spans
from kvstore.spec import KVGroup, KVSpec

LAYOUT = SlotLayout(layers=3, kv_heads=4, block_tokens=5, parts=2, run_bytes=6)
CODING = Coding("fp8", "float32")


def strips_of(f: Fragment) -> set[tuple[int, int]]:
    return {
        (layer, head)
        for layer in range(f.layer_first, f.layer_first + f.layers)
        for head in range(f.head_first, f.head_first + f.heads)
    }


def every_fragment() -> list[Fragment]:
    sides = [(first, count) for first in range(3) for count in range(1, 4 - first)]
    return [Fragment(*layers, *heads) for layers, heads in itertools.product(sides, sides)]


def test_fragments_cover_and_overlap_as_sets_of_strips_do() -> None:
    for a, b in itertools.product(every_fragment(), repeat=2):
        assert a.overlaps(b) == bool(strips_of(a) & strips_of(b)), f"{a} / {b}"
        assert a.covers(b) == (strips_of(a) >= strips_of(b)), f"{a} / {b}"


def test_a_fragment_that_reaches_outside_the_block_is_told_what_is_there() -> None:
    for fragment in every_fragment():
        assert LAYOUT.check(fragment) is fragment
    for wrong in ((0, 4, 0, 1), (3, 1, 0, 1), (-1, 1, 0, 1), (0, 0, 0, 1)):
        with pytest.raises(OutOfRange, match=r"the block has layers 0\.\.2"):
            LAYOUT.check(Fragment(*wrong))
    for wrong in ((0, 1, 0, 5), (0, 1, 4, 1), (0, 1, -1, 1), (0, 1, 0, 0)):
        with pytest.raises(OutOfRange, match=r"the block has heads 0\.\.3"):
            LAYOUT.check(Fragment(*wrong))


def test_a_layout_is_read_off_its_group() -> None:
    groups = (KVGroup((0, 2), 8, 128, 16), KVGroup((1,), 1, 576, 64, parts=1))
    spec = KVSpec("m", "r", "bfloat16", groups)
    full, latent = SlotLayout.of(spec, 0), SlotLayout.of(spec, 1)
    assert full == SlotLayout(2, 8, 16, 2, 256)
    assert latent == SlotLayout(1, 1, 64, 1, 1152)
    assert full.token_bytes == spec.token_bytes(0) == 512
    assert latent.token_bytes == spec.token_bytes(1) == 1152
    assert full.payload_bytes == 2 * 8 * 16 * 512


def test_a_coded_strip_has_a_byte_an_element_its_scales_and_whole_lines() -> None:
    groups = (KVGroup((0, 2), 8, 128, 24), KVGroup((1,), 1, 576, 64, parts=1))
    spec = KVSpec("m", "r", "bfloat16", groups, codec="int8")
    full, latent = SlotLayout.of(spec, 0), SlotLayout.of(spec, 1)
    assert full.strip_stride == 24 * 256 + 64 == full.strip_bytes(24)  # 2 groups x 2 scales
    assert [full.strip_bytes(tokens) for tokens in (1, 16, 17)] == [320, 4160, 4416]
    assert latent.strip_stride == 64 * 576 + 64
    assert full.block_bytes(17) == 16 * 4416
    assert full.payload_bytes == full.block_bytes(24)
    with pytest.raises(AssertionError, match=r"strip_bytes\(tokens\)"):
        _ = full.token_bytes


def test_the_spans_of_a_coded_short_block_lie_at_the_strides_of_a_full_one() -> None:
    spec = KVSpec("m", "r", "float32", (KVGroup((0, 1), 2, 40, 24),), codec="fp8")
    layout, slot = SlotLayout.of(spec, 0), Slot(0, 0, (b"", 0), tokens=5)
    found = list(spans(slot, layout, layout.whole))
    assert [at for _, at, _ in found] == [
        layout.head_bytes + strip * layout.strip_stride for strip in range(4)
    ]
    assert {size for _, _, size in found} == {layout.strip_bytes(5)} == {448}


def test_the_head_stands_where_the_table_in_the_module_says() -> None:
    head = HEAD.pack(
        *(1, 2, 3, b"r" * 16, 7, 8, b"k" * 32, b"n" * 32, 4, 5, 6, b"p" * 32, b"t" * 16)
    )
    assert len(head) == TABLE_OFFSET
    assert head[GENERATION_OFFSET : GENERATION_OFFSET + 8] == (2).to_bytes(8, "little")
    assert head[STATE_OFFSET : STATE_OFFSET + 4] == (3).to_bytes(4, "little")
    assert head[ROOT_OFFSET : ROOT_OFFSET + 16] == b"r" * 16
    assert head[PLACE_OFFSET:IDENTITY_OFFSET] == bytes([7, *bytes(7), 8, *bytes(7)])
    numbers = ((4, 4), (5, 4), (6, 8))  # group, tokens, origin
    identity = b"k" * 32 + b"n" * 32 + b"".join(n.to_bytes(size, "little") for n, size in numbers)
    identity += b"p" * 32 + b"t" * 16
    assert head[IDENTITY_OFFSET:] == identity.ljust(TABLE_OFFSET - IDENTITY_OFFSET, b"\0")


def random_layouts() -> list[SlotLayout]:
    dice = random.Random(7)
    shape = [(1, 5), (1, 9), (1, 40), (1, 2), (1, 300)]
    plain = [SlotLayout(*(dice.randint(*side) for side in shape)) for _ in range(200)]
    return [*plain, *(replace(one, run_bytes=4 * one.run_bytes, coding=CODING) for one in plain)]


def test_table_strips_and_the_next_slot_never_overlap() -> None:
    for layout in random_layouts():
        assert layout.head_bytes % SLOT_ALIGN == layout.slot_bytes % SLOT_ALIGN == 0
        assert IDENTITY_OFFSET + layout.root_bytes == TABLE_OFFSET + 8 * layout.strips
        assert TABLE_OFFSET + 8 * layout.strips <= layout.head_bytes
        slot = Slot(0, 3 * layout.slot_bytes, (b"", 0), tokens=layout.block_tokens)
        end = slot.offset + layout.head_bytes
        for number, (strip, at, size) in enumerate(spans(slot, layout, layout.whole)):
            assert strip == number
            assert at == end, "a gap or an overlap between the strips of a full block"
            end = at + size
        assert end == slot.offset + layout.head_bytes + layout.payload_bytes
        assert end <= slot.offset + layout.slot_bytes


def test_a_short_block_keeps_the_places_and_leaves_out_the_gaps() -> None:
    dice = random.Random(8)
    for layout in random_layouts():
        tokens = dice.randint(1, layout.block_tokens)
        slot, full = Slot(0, 0, (b"", 0), tokens=tokens), Slot(0, 0, (b"", 0))
        full.tokens = layout.block_tokens
        short = list(spans(slot, layout, layout.whole))
        whole = list(spans(full, layout, layout.whole))
        assert [at for _, at, _ in short] == [at for _, at, _ in whole]
        assert {size for _, _, size in short} == {layout.strip_bytes(tokens)}
        assert sum(size for _, _, size in short) == layout.block_bytes(tokens)
    assert LAYOUT.block_bytes(LAYOUT.block_tokens) == LAYOUT.payload_bytes


def test_the_spans_of_a_fragment_are_its_strips() -> None:
    slot = Slot(0, LAYOUT.slot_bytes, (b"", 0), tokens=2)
    places = {strip: at for strip, at, _ in spans(slot, LAYOUT, LAYOUT.whole)}
    for fragment in every_fragment():
        found = list(spans(slot, LAYOUT, fragment))
        wanted = sorted(layer * LAYOUT.kv_heads + head for layer, head in strips_of(fragment))
        assert [strip for strip, _, _ in found] == wanted
        assert all(places[strip] == at for strip, at, _ in found)
