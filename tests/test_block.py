"""A block's hash names its whole prefix; nothing that changes its KV can be forgotten in it."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block import Chain, Keyed, chain, extend, following, foreign, stored_key
from kvstore.errors import Invalid

SPACE = bytes(range(32))
SECRET = bytes(range(32, 64))
tokens_of = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_the_hashes_are_the_same_for_ever() -> None:
    made = chain(SPACE, 1, [5, 6, 7, 2**32 - 1, 9], 4)
    first = blake3(
        struct.pack("<I28x", 1) + struct.pack("<I", 4) + struct.pack("<4I", 5, 6, 7, 2**32 - 1),
        key=SPACE,
    ).digest()
    last = blake3(first + struct.pack("<II", 1, 9), key=SPACE).digest()
    assert made == Chain((first, last), (4, 1), 4)
    assert last.hex() == "acc60b50b30b09a341b9eec05076aa947f5566c114973647de93853750f998aa"
    assert (
        stored_key(SECRET, SPACE, 1, last).hex()
        == "c7f1d9d05943271cf0616538156d9e19d55b73e362f33b0c9ddfa7ec7caf8d5e"
    )


@given(tokens=tokens_of, size=st.integers(1, 7), known=st.integers(0, 9))
def test_blocks_that_follow_one_are_those_of_the_whole_chain(
    tokens: list[int], size: int, known: int
) -> None:
    whole = chain(SPACE, 2, tokens, size).full().hashes
    known = min(known, len(whole))
    parent = whole[known - 1] if known else b""
    behind = np.array(tokens[known * size :], np.uint32)
    assert following(SPACE, 2, parent, behind, size) == whole[known:]


@settings(derandomize=True, deadline=None)
@given(tokens=tokens_of, more=tokens_of, size=st.integers(1, 7))
def test_a_chain_is_extended_by_what_is_new_alone(
    tokens: list[int], more: list[int], size: int
) -> None:
    extra = {0: bytes(32), 3: bytes(range(32)), 5: bytes([7] * 32)}
    known = chain(SPACE, 2, tokens, size, extra).full()
    behind = (tokens + more)[known.token_count :]
    assert extend(known, SPACE, 2, behind, extra) == chain(SPACE, 2, tokens + more, size, extra)


def test_a_chain_that_ends_in_a_short_block_is_not_extended() -> None:
    with pytest.raises(Invalid, match="the last known block has 1 of 4 tokens: take `full`"):
        extend(chain(SPACE, 1, [5, 6, 7, 8, 9], 4), SPACE, 1, [10], None)


@settings(derandomize=True, deadline=None)
@given(tokens=tokens_of, more=tokens_of, size=st.integers(1, 7))
def test_a_longer_sequence_begins_with_the_full_blocks_of_a_shorter(
    tokens: list[int], more: list[int], size: int
) -> None:
    short, long = chain(SPACE, 0, tokens, size), chain(SPACE, 0, tokens + more, size)
    full = len(tokens) // size
    assert long.hashes[:full] == short.hashes[:full] == short.full().hashes
    assert short.token_count == len(tokens)
    assert len(short) == -(-len(tokens) // size)


@settings(derandomize=True, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=24), data=st.data())
def test_a_changed_token_changes_its_block_and_all_behind_it_and_none_before(
    tokens: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 5))
    where = data.draw(st.integers(0, len(tokens) - 1))
    other = [t + 1 if i == where else t for i, t in enumerate(tokens)]
    here, there = chain(SPACE, 0, tokens, size).hashes, chain(SPACE, 0, other, size).hashes
    same = [a == b for a, b in zip(here, there, strict=True)]
    assert same == [i < where // size for i in range(len(here))]


def test_equal_blocks_at_two_places_of_a_sequence_have_two_hashes() -> None:
    made = chain(SPACE, 0, [1, 2] * 50, 2)
    assert len(set(made.hashes)) == 50


def test_a_short_block_never_has_the_hash_of_another_length() -> None:
    seen: dict[bytes, int] = {}
    for count in range(1, 9):
        for size in range(count, 9):  # always one block
            made = chain(SPACE, 0, [0] * count, size)
            assert made.tokens == (count,)
            assert seen.setdefault(made.hashes[0], count) == count
    assert len(seen) == 8


def test_a_tail_is_sealed_apart_and_full_leaves_it_out() -> None:
    made = chain(SPACE, 0, range(10), 4)
    assert made.tokens == (4, 4, 2)
    assert made.ends == (4, 8, 10)
    assert made.full() == chain(SPACE, 0, range(8), 4)
    assert made.hashes[2] != chain(SPACE, 0, range(12), 4).hashes[2]
    assert made.full().full() is not made and chain(SPACE, 0, [], 4).full().hashes == ()


def test_parts_of_a_chain_know_their_parents() -> None:
    made = chain(SPACE, 0, range(10), 4)
    assert [made.parent(i) for i in range(3)] == [b"", *made.hashes[:2]]
    part = made.between(1, 3)
    assert part.hashes == made.hashes[1:] and part.tokens == (4, 2) and len(part) == 2


def test_namespace_group_and_extra_content_are_all_in_the_hash() -> None:
    tokens, lora, image = range(8), b"l" * 32, b"i" * 32
    plain = chain(SPACE, 0, tokens, 4)
    others = [
        chain(SPACE[::-1], 0, tokens, 4),
        chain(SPACE, 1, tokens, 4),
        chain(SPACE, 0, tokens, 4, {0: lora}),
        chain(SPACE, 0, tokens, 4, {0: image}),
    ]
    hashes = [h for one in (plain, *others) for h in one.hashes]
    assert len(set(hashes)) == len(hashes)
    late = chain(SPACE, 0, tokens, 4, {1: image})
    assert late.hashes[0] == plain.hashes[0] and late.hashes[1] != plain.hashes[1]
    assert chain(SPACE, 0, tokens, 4, {}) == chain(SPACE, 0, tokens, 4, {0: b""}) == plain


def test_extra_content_cannot_be_taken_for_tokens() -> None:
    digest = struct.pack("<8I", *range(8))
    with_extra = chain(SPACE, 0, [7], 64, {0: digest})
    assert with_extra.hashes != chain(SPACE, 0, [7, *range(8)], 64).hashes
    assert with_extra.hashes != chain(SPACE, 0, [7], 64).hashes


@pytest.mark.parametrize("dtype", ["<u4", "<i4", "<i8", "<u8", ">i4", "<u2", "u1"])
def test_tokens_are_numbers_however_they_are_stored(dtype: str) -> None:
    tokens = random.Random(1).choices(range(200), k=21)
    wanted = chain(SPACE, 0, tokens, 4)
    assert chain(SPACE, 0, np.array(tokens, dtype=dtype), 4) == wanted
    strided = np.zeros((21, 2), dtype=dtype)
    strided[:, 0] = tokens
    assert chain(SPACE, 0, strided[:, 0], 4) == wanted
    assert chain(SPACE, 0, tuple(tokens), 4) == wanted


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [2**32],
        [2**70],
        [1.5],
        [True],
        np.array([-1]),
        np.array([2**32 + 5]),
        np.array([2**64 - 1], dtype="u8"),
        np.array([1.0]),
        np.array([[1, 2]]),
        [[1, 2]],
    ],
)
def test_tokens_that_are_none_are_refused_before_they_can_wrap(tokens: list[int]) -> None:
    with pytest.raises(Invalid, match="tokens"):
        chain(SPACE, 0, tokens, 4)


def test_digests_and_blocks_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(Invalid, match="namespace is 31 bytes"):
        chain(SPACE[1:], 0, [1], 4)
    with pytest.raises(Invalid, match=r"extra\[0\] is 4 bytes"):
        chain(SPACE, 0, [1], 4, {0: b"lora"})
    with pytest.raises(Invalid, match="block_tokens is 0"):
        chain(SPACE, 0, [1], 0)


def test_a_tenant_can_neither_choose_nor_learn_the_stored_key_of_another() -> None:
    block = chain(SPACE, 0, range(4), 4).hashes[0]
    keys = {stored_key(bytes([i]) * 32, SPACE, 0, block) for i in range(20)}
    assert len(keys) == 20 and block not in keys
    ours = stored_key(SECRET, SPACE, 0, block)
    assert ours == stored_key(SECRET, SPACE, 0, block)
    assert ours != stored_key(SECRET, SPACE, 0, block[::-1])
    assert ours != stored_key(SECRET, SPACE, 1, block)
    assert ours != stored_key(SECRET, SPACE[::-1], 0, block), "a hash is of one namespace"


def test_the_hashes_of_foreign_keys_are_the_same_for_ever() -> None:
    made = foreign(SPACE, 1, ["page-1", b"\xff\x00"], 16)
    tag = b"moonpool foreign key" + bytes(12)
    texts = [b"page-1", b"\xff\x00"]
    wanted = tuple(
        blake3(tag + struct.pack("<II", 1, len(text)) + text, key=SPACE).digest() for text in texts
    )
    assert made == Keyed(wanted, 16)
    assert wanted[0].hex() == "431d8c2f9ea5da740c23e8731514abfd236b739fdc1720208016999cc55c08bf"


def test_foreign_keys_stand_each_by_itself() -> None:
    made = foreign(SPACE, 0, ["a", "b", "c"], 16)
    assert foreign(SPACE, 0, ["c", "a"], 16).hashes == (made.hashes[2], made.hashes[0])
    assert made.tokens == (16, 16, 16) and [made.parent(i) for i in range(3)] == [b""] * 3
    assert made.between(1, 3) == foreign(SPACE, 0, ["b", "c"], 16)
    assert made.alone and not chain(SPACE, 0, [1], 4).alone
    assert foreign(SPACE, 0, [], 16) == Keyed((), 16)
    assert foreign(SPACE, 0, ["\u00e9"], 16) == foreign(SPACE, 0, ["\u00e9".encode()], 16)


def test_namespace_group_and_key_are_all_in_a_foreign_hash() -> None:
    made = [
        foreign(SPACE, 0, ["a"], 16),
        foreign(SPACE[::-1], 0, ["a"], 16),
        foreign(SPACE, 1, ["a"], 16),
        foreign(SPACE, 0, ["aa"], 16),
        foreign(SPACE, 0, ["a\0"], 16),
    ]
    assert len({one.hashes[0] for one in made}) == len(made)


def test_no_tokens_hash_to_what_a_foreign_key_does() -> None:
    # The same bytes after the tag, as a chain would hash them: its first 32 bytes are its own.
    tokens = struct.unpack("<2I", b"abcdefgh")
    assert chain(SPACE, 0, tokens, 8).hashes != foreign(SPACE, 0, [b"abcdefgh"], 8).hashes
    begin = struct.pack("<I28x", 0)
    assert begin[4:] == bytes(28) and b"moonpool foreign key"[4:] != bytes(16)


def test_keys_that_name_nothing_are_refused() -> None:
    with pytest.raises(Invalid, match=r"keys\[1\] is empty"):
        foreign(SPACE, 0, ["a", ""], 16)
    with pytest.raises(Invalid, match="namespace is 3 bytes"):
        foreign(b"abc", 0, ["a"], 16)
    with pytest.raises(Invalid, match="block_tokens is 0"):
        foreign(SPACE, 0, ["a"], 0)
