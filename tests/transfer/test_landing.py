"""Room for blocks: where pieces lie, and that nothing passes for good which is not."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.direct import Pages
from kvstore.transfer.landing import IDENTITY_BYTES, Landing, rows_of
from kvstore.transfer.protocol import Memory

LAYOUT = SlotLayout(layers=3, kv_heads=4, block_tokens=8, parts=2, run_bytes=256)  # strips of 4 KiB
NO_ROOT = np.zeros((1, 16), np.uint8)
EVERY = np.arange(1)


def landed(tokens: int, seed: int = 0) -> Landing:
    """One block whose bytes have come, with the table of its strips."""
    dice = np.random.default_rng(seed)
    memory = np.frombuffer(bytearray(dice.bytes(LAYOUT.payload_bytes)), np.uint8)
    made = Landing(LAYOUT, memory, np.zeros(1, np.int64), np.array([tokens], np.int32))
    made.hash(EVERY, LAYOUT.whole)
    return made


def root(one: Landing) -> np.ndarray:
    return np.frombuffer(xxhash.xxh3_128_digest(one.runs[0]), np.uint8)[None].copy()


@pytest.mark.parametrize("tokens", [8, 3])
@pytest.mark.parametrize("part", [LAYOUT.whole, Fragment(1, 2, 1, 2), Fragment(0, 3, 0, 1)])
def test_pieces_are_the_strips_in_slot_order(tokens: int, part: Fragment) -> None:
    one = landed(tokens)
    payload = one.memory.reshape(LAYOUT.strips, LAYOUT.strip_stride)
    size = LAYOUT.strip_bytes(tokens)
    wanted = b"".join(payload[row, :size].tobytes() for row in rows_of(LAYOUT, part))
    assert b"".join(one.pieces(0, part)) == wanted


@pytest.mark.parametrize("tokens", [8, 3])
def test_a_flip_of_any_strip_is_seen_and_one_outside_the_fragment_is_not(tokens: int) -> None:
    part = Fragment(1, 2, 1, 2)
    inside = set(rows_of(LAYOUT, part).tolist())
    for strip in range(LAYOUT.strips):
        one = landed(tokens, strip)
        assert one.proven(EVERY, part, NO_ROOT).all()
        last = LAYOUT.strip_bytes(tokens) - 1
        one.memory[strip * LAYOUT.strip_stride + last] ^= 1
        assert one.proven(EVERY, part, NO_ROOT).all() == (strip not in inside)


def test_a_strip_that_is_not_written_is_not_good_whatever_its_bytes() -> None:
    one = landed(8)
    one.tables[0, 5] = 0
    assert not one.proven(EVERY, LAYOUT.whole, NO_ROOT).any()


def test_a_table_counts_only_with_the_root_that_the_owner_gave() -> None:
    one = landed(8)
    assert one.proven(EVERY, LAYOUT.whole, root(one)).all()
    other = root(one)
    other[0, 3] ^= 1
    assert not one.proven(EVERY, LAYOUT.whole, other).any()
    right = root(one)
    one.runs[0, 0] ^= 1  # whose block it is
    assert not one.proven(EVERY, LAYOUT.whole, right).any()
    assert IDENTITY_BYTES == 192


def test_bytes_that_agree_with_a_forged_table_have_not_the_root() -> None:
    """Whoever changes strips on the way can change their table too; not what gRPC said."""
    one = landed(8)
    right = root(one)
    one.memory[:] ^= 0xFF
    one.hash(EVERY, LAYOUT.whole)
    assert one.proven(EVERY, LAYOUT.whole, NO_ROOT).all()
    assert not one.proven(EVERY, LAYOUT.whole, right).any()


def test_good_and_bad_blocks_of_one_call_are_told_apart() -> None:
    blocks, stride = 6, LAYOUT.payload_bytes
    memory = np.frombuffer(bytearray(np.random.default_rng(1).bytes(blocks * stride)), np.uint8)
    tokens = np.array([8, 1, 8, 5, 8, 8], np.int32)
    one = Landing(LAYOUT, memory, stride * np.arange(blocks), tokens)
    one.hash(np.arange(blocks), LAYOUT.whole)
    memory[2 * stride + 7] ^= 2
    memory[3 * stride + 7] ^= 2
    rows = np.array([5, 3, 1, 2])
    roots = np.zeros((4, 16), np.uint8)
    assert one.proven(rows, LAYOUT.whole, roots).tolist() == [True, False, True, False]


# The caller's own pages


def paged(
    page_tokens: int, table: list[int], heads: int = 4, axes: str = "phtkd"
) -> tuple[Memory, list[np.ndarray]]:
    size = {"p": max(table) + 2, "h": heads, "t": page_tokens, "k": 2, "d": 256}
    layers = [np.zeros([size[a] for a in axes], np.uint8) for _ in range(LAYOUT.layers)]
    stride = dict(zip(axes, layers[0].strides, strict=True))
    memory = Memory(
        layer_addresses=np.array([one.ctypes.data for one in layers], np.uint64),
        page_stride=stride["p"],
        head_stride=stride["h"],
        token_stride=stride["t"],
        part_stride=stride["k"],
        page_tokens=page_tokens,
        page_count=size["p"],
        block_table=np.array(table),
        heads=heads,
        owners=tuple(layers),
    )
    return memory, layers


def pages_of(memory: Memory, tokens: list[int], part: Fragment) -> Pages | None:
    starts = 8 * np.arange(len(tokens))
    return Pages.of(LAYOUT, memory, starts, np.array(tokens, np.int32), part)


@pytest.mark.parametrize("page_tokens", [8, 16, 24])
@pytest.mark.parametrize("part", [LAYOUT.whole, Fragment(1, 2, 1, 2), Fragment(0, 3, 3, 1)])
def test_dense_pages_are_filled_where_each_token_belongs(page_tokens: int, part: Fragment) -> None:
    tokens = [8, 8, 5]
    memory, layers = paged(page_tokens, [3, 1, 4][: -(-24 // page_tokens)])
    direct = pages_of(memory, tokens, part)
    assert direct is not None
    truth = np.random.default_rng(2).integers(0, 256, (3, 4, 24, 2, 256), np.uint8)
    for row, count in enumerate(tokens):
        strips = truth[
            part.layer_first : part.layer_first + part.layers,
            part.head_first : part.head_first + part.heads,
            8 * row : 8 * row + count,
        ].reshape(part.layers * part.heads, -1)
        came = strips.tobytes()
        for piece in direct.pieces(row, part):
            piece[:], came = came[: len(piece)], came[len(piece) :]
        assert not came
    for layer in range(part.layer_first, part.layer_first + part.layers):
        for head in range(part.head_first, part.head_first + part.heads):
            for at in range(21):
                page = memory.block_table[at // page_tokens]
                got = layers[layer][page, head, at % page_tokens]
                assert np.array_equal(got, truth[layer, head, at])
    rows = np.arange(3)
    direct.hash(rows, part)
    roots = np.zeros((3, 16), np.uint8)
    assert direct.proven(rows, part, roots).all()
    layers[part.layer_first][memory.block_table[0], part.head_first, 7, 1, 255] ^= 1
    assert direct.proven(rows, part, roots).tolist() == [False, True, True]


def test_blocks_over_pages_are_direct_only_where_these_follow_each_other() -> None:
    one = Fragment(0, 3, 0, 1)
    for table, dense in (([2, 3, 4, 5], True), ([2, 3, 5, 4], False), ([3, 2, 4, 5], False)):
        memory, _ = paged(4, table, heads=1)
        assert (pages_of(memory, [8, 8], one) is not None) == dense, table
    memory, _ = paged(4, [2, 3, 4, 5])  # heads lie between the pages
    assert pages_of(memory, [8, 8], LAYOUT.whole) is None


def test_what_is_not_dense_is_left_to_the_kernels() -> None:
    for axes in ("pthkd", "ptkhd", "pkhtd"):
        memory, _ = paged(8, [0, 1], axes=axes)
        assert pages_of(memory, [8, 8], LAYOUT.whole) is None, axes
