"""What engines publish is read in both forms, and what is no event of theirs is passed over."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.client.kv_events.messages import (
    Cleared,
    Event,
    Messages,
    Removed,
    Stored,
    Unreadable,
)

TOKENS = list(range(32))
STORED = {
    "type": "BlockStored",
    "block_hashes": [b"a" * 32, b"b" * 32],
    "parent_block_hash": None,
    "token_ids": TOKENS,
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [5, -7], "medium": "GPU"}


def packed(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def read(*events: Any, group: int = 0) -> tuple[list[Event], dict[str, int]]:
    messages = Messages(group)
    found = messages.read(packed(*events))
    return found, dict(messages.passed_over)


def listed(event: dict[str, Any]) -> list[Any]:
    """In the older form: values in the order of a class's fields."""
    return list(event.values())


@pytest.mark.parametrize("form", [dict, listed])
def test_events_are_read_in_both_forms(form: Any) -> None:
    found, passed_over = read(form(STORED), form(REMOVED), form({"type": "AllBlocksCleared"}))
    first, second, third = found
    assert isinstance(first, Stored) and first.hashes == (b"a" * 32, b"b" * 32)
    assert first.parent is None and first.tokens.tolist() == TOKENS and first.block_tokens == 16
    assert second == Removed((5, -7)) and third == Cleared()
    assert not passed_over


def test_the_oldest_forms_have_no_medium() -> None:
    found, passed_over = read(["BlockStored", [1], 9, TOKENS, 32, None], ["BlockRemoved", [1]])
    assert [type(one) for one in found] == [Stored, Removed] and not passed_over


def test_a_batch_of_an_engine_without_ranks_is_one() -> None:
    assert Messages().read(msgspec.msgpack.encode([1.5, [["AllBlocksCleared"]]])) == [Cleared()]


def test_a_batch_says_when_it_was_made() -> None:
    messages = Messages()
    for said, made in ((7.25, 7.25), (8, 8.0), ("9", 0.0)):
        messages.read(msgspec.msgpack.encode([said, []]))
        assert messages.made == made


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"medium": "CPU"}, "other memory"),
        ({"medium": "STORAGE"}, "other memory"),
        ({"group_idx": 1}, "other group"),
        ({"lora_id": 3}, "key unknown"),
        ({"lora_name": "sql"}, "key unknown"),
        ({"cache_salt": "mine"}, "key unknown"),
        ({"extra_keys": [["salt"], None]}, "key unknown"),
        ({"token_ids": TOKENS[:16]}, "blocks left out"),
        ({"token_ids": [[one, one + 1] for one in TOKENS]}, "malformed"),
        ({"token_ids": [-1] * 32}, "malformed"),
        ({"token_ids": [2**32] * 32}, "key unknown"),
        ({"token_ids": [0.5] * 32}, "malformed"),
        ({"token_ids": [[1], [2, 3]]}, "malformed"),
        ({"token_ids": []}, "malformed"),
        ({"token_ids": "text"}, "malformed"),
        ({"block_size": 0}, "malformed"),
        ({"block_size": True}, "malformed"),
        ({"block_size": 1 << 40}, "malformed"),
        ({"block_hashes": ["text", "text"]}, "malformed"),
        ({"block_hashes": [b"", b"a"]}, "malformed"),
        ({"block_hashes": [b"a" * 65, b"a"]}, "malformed"),
        ({"block_hashes": None}, "malformed"),
        ({"parent_block_hash": [1]}, "malformed"),
        ({"extra_keys": "text"}, "malformed"),
        ({"type": "BlockMoved"}, "unknown"),
        ({"type": 5}, "malformed"),
    ],
)
def test_what_is_not_known_for_sure_is_passed_over_and_counted(
    changed: dict[str, Any], why: str
) -> None:
    found, passed_over = read({**STORED, **changed}, REMOVED)
    assert [type(one) for one in found] == [Removed] and passed_over == {why: 1}


def test_fields_that_nobody_knows_do_no_harm() -> None:
    found, passed_over = read({**STORED, "session_id": "s", "later": [1]}, {**REMOVED, "x": None})
    assert len(found) == 2 and not passed_over


@pytest.mark.parametrize(
    "image",
    [
        {"extra_keys": [None, [["image", 3]]]},
        {"token_ids": [*TOKENS[:20], *[1 << 61] * 12]},  # as SGLang tells of one
    ],
    ids=["key", "tokens"],
)
def test_of_a_prompt_with_an_image_what_stands_before_it_is_known(image: dict[str, Any]) -> None:
    [found], passed_over = read({**STORED, **image})
    assert not passed_over
    assert isinstance(found, Stored)
    assert found.hashes == (b"a" * 32,) and found.tokens.tolist() == TOKENS[:16]


def test_events_of_the_group_that_is_asked_for_are_read() -> None:
    found, passed_over = read({**STORED, "group_idx": 1}, {**REMOVED, "group_idx": 0}, group=1)
    assert [type(one) for one in found] == [Stored] and passed_over == {"other group": 1}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packed(STORED)[:-5],
        packed(STORED) + b"\0",
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode([1.5, {}]),
        b"\x91" * 100_000,  # lists in lists
        b"\xdd\xff\xff\xff\xff",  # four thousand million things, none of which comes
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        Messages().read(payload)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    # Few that are of the right kind would be drawn by chance.
    | st.binary(max_size=70)
    | st.sampled_from(["BlockStored", "BlockRemoved", "GPU"]),
    lambda some: (
        st.lists(some, max_size=4)
        | st.dictionaries(st.sampled_from([*STORED, "extra_keys", "group_idx"]), some, max_size=9)
    ),
    max_leaves=30,
)


@given(st.lists(VALUES, max_size=5))
def test_whatever_comes_is_read_or_passed_over(events: list[Any]) -> None:
    found, passed_over = read(*events)
    assert len(found) + sum(passed_over.values()) == len(events)


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_read_or_refused(payload: bytes) -> None:
    with suppress(Unreadable):
        Messages().read(payload)
