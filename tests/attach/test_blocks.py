"""Which block is where, by its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.attach.blocks import NONE, Blocks, Computed, Reason
from kvstore.client.kv_events.messages import Hash, Stored


def stored(names: list[Hash], tokens: list[int], parent: Hash | None = None) -> Stored:
    return Stored(tuple(names), parent, np.array(tokens, np.uint32), len(tokens) // len(names))


def computed(blocks: Blocks, engine: int, event: Stored) -> Computed:
    found = blocks.store(engine, event)
    blocks.check()
    assert found is not None
    return found


def test_blocks_of_equal_tokens_are_one_whatever_engines_call_them() -> None:
    blocks = Blocks(2)
    one = computed(blocks, 0, stored([11, 12], [1, 2, 3, 4]))
    other = computed(blocks, 1, stored([b"x", b"y"], [1, 2, 3, 4]))
    assert one.numbers == other.numbers and one.before == NONE
    assert one.reasons == (Reason.NEVER, Reason.NEVER)
    assert other.reasons == (Reason.ELSEWHERE, Reason.ELSEWHERE)
    assert blocks.path(one.numbers[-1]) == list(one.numbers)


def test_equal_tokens_behind_others_are_another_block() -> None:
    blocks = Blocks(1)
    first = computed(blocks, 0, stored([1, 2], [1, 2, 1, 2]))
    assert len(set(first.numbers)) == 2
    behind = computed(blocks, 0, stored([3], [1, 2], parent=2))
    assert behind.numbers[0] not in first.numbers
    assert blocks.depth(behind.numbers[0]) == 3


def test_what_an_engine_let_go_of_was_evicted_there_and_gone_for_others() -> None:
    blocks = Blocks(2)
    computed(blocks, 0, stored([1], [1, 2]))
    blocks.remove(0, (1, 99))
    assert computed(blocks, 1, stored([1], [1, 2])).reasons == (Reason.GONE,)
    assert computed(blocks, 0, stored([1], [1, 2])).reasons == (Reason.EVICTED,)


def test_a_block_that_is_there_twice_is_there_until_both_are_gone() -> None:
    blocks = Blocks(2)
    computed(blocks, 0, stored([1], [1, 2]))
    again = computed(blocks, 0, stored([1], [1, 2]))
    assert again.reasons == (Reason.HERE,)
    blocks.remove(0, (1,))
    assert blocks.has(0, again.numbers[0])
    blocks.remove(0, (1,))
    assert not blocks.has(0, again.numbers[0])
    blocks.check()


def test_an_engine_that_is_forgotten_has_nothing_and_had_all() -> None:
    blocks = Blocks(1)
    computed(blocks, 0, stored([1], [1, 2]))
    blocks.forget(0)
    assert computed(blocks, 0, stored([1], [1, 2])).reasons == (Reason.EVICTED,)


def test_behind_a_block_that_nobody_told_of_blocks_are_told_apart_by_its_name() -> None:
    blocks = Blocks(2)
    one = computed(blocks, 0, stored([5], [1, 2], parent=77))
    same = computed(blocks, 1, stored([6], [1, 2], parent=77))
    other = computed(blocks, 1, stored([7], [1, 2], parent=78))
    assert one.numbers == same.numbers != other.numbers
    assert blocks.path(one.numbers[0]) == list(one.numbers)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (stored([9], [1, 2, 3]), "of another size"),
        (stored([9], [1]), "of another size"),
        (stored([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]), "too many"),
    ],
)
def test_what_cannot_be_told_apart_is_left_out_and_counted(event: Stored, why: str) -> None:
    blocks = Blocks(1, blocks_max=4)
    computed(blocks, 0, stored([1, 2], [1, 2, 3, 4]))
    assert blocks.store(0, event) is None
    assert blocks.left_out == {why: len(event.hashes)}
    blocks.check()


def test_a_block_that_is_not_full_and_comes_first_does_not_say_how_large_blocks_are() -> None:
    blocks = Blocks(1)
    for event in (stored([1], [1]), stored([2], [1, 2]), stored([3, 4], [3, 4, 5, 6], parent=2)):
        computed(blocks, 0, event)
        assert blocks.block_tokens == len(event.tokens) // len(event.hashes)
    assert blocks.store(0, stored([5], [7], parent=4)) is None
    assert blocks.store(0, stored([5], [7, 8, 9], parent=4)) is None, "that is known by now"
    assert (blocks.block_tokens, blocks.left_out) == (2, {"of another size": 2})


names: st.SearchStrategy[Hash] = st.integers(0, 9)
tokens = st.integers(0, 2)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.integers(0, 1),
                st.lists(st.tuples(names, tokens), min_size=1, max_size=4),
                st.none() | names,
            ),
            st.tuples(st.integers(0, 1), st.lists(names, max_size=3).map(tuple)),
            st.tuples(st.integers(0, 1)),
        ),
        max_size=60,
    )
)
def test_whatever_engines_say_what_is_remembered_is_bounded_and_of_one_piece(
    said: list[Any],
) -> None:
    blocks = Blocks(2, blocks_max=12)
    for one in said:
        match one:
            case (engine, [*pairs], parent):
                hashes = [name for name, _ in pairs]
                blocks.store(engine, stored(hashes, [token for _, token in pairs], parent))
            case (engine, gone):
                blocks.remove(engine, gone)
            case (engine,):
                blocks.forget(engine)
        blocks.check()
        assert len(blocks) <= 12
