"""Whatever another node answers is one of blocks that can be, or is refused as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import Unavailable
from kvstore.node.replies import hits_of, sealed_of, slots_of
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import LAYOUT

HIT = {"slot_offsets": 8_192, "generations": 3, "tokens": 4, "roots": b"r" * 16}
HIT |= {"handles": b"h" * 73, "parents": b"p" * 32, "origins": 7}
MISS = {"slot_offsets": 0, "generations": 0, "tokens": 0, "roots": b""}
MISS |= {"handles": b"", "parents": b"", "origins": 0}


def reply_of(rows: list[dict[str, object]]) -> pb.OpenReply:
    reply = pb.OpenReply()
    for row in rows:
        hit = bool(row["handles"]) or row.get("hit")
        reply.outcomes.append(pb.HIT if hit else pb.ABSENT)
        for name in HIT:
            getattr(reply, name).append(row[name])
    return reply


def test_hits_are_told_from_misses_and_whole_blocks_from_those_being_written() -> None:
    filling = {**HIT, "roots": b""}
    reply = reply_of([HIT, MISS, filling, {**HIT, "roots": bytes(16)}])
    rows = hits_of(reply, 4, LAYOUT)
    assert rows == [0, 2, 3]
    assert sealed_of(reply, rows) == [0], "what no root vouches for is not proven"
    slots = slots_of(reply, rows)
    assert slots.tokens.tolist() == [4, 4, 4] and slots.rooted.tolist() == [True, False, False]
    assert not len(slots_of(reply, []))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 5},  # more than a block of this layout holds: it would land on its neighbour
        {"tokens": 0},
        {"tokens": 2**32 - 1},
        {"handles": b"h" * 81},
        {"handles": b"", "hit": True},
        {"roots": b"r" * 17},
        {"roots": b"r" * 15},
        {"parents": b"p" * 31},
        {"slot_offsets": 2**63},
    ],
)
def test_a_block_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Unavailable, match="as none of this layout can be"):
        hits_of(reply_of([HIT, {**HIT, **wrong}]), 2, LAYOUT)


def test_handles_of_two_sizes_are_refused() -> None:
    with pytest.raises(Unavailable):
        hits_of(reply_of([HIT, {**HIT, "handles": b"h"}]), 2, LAYOUT)


@pytest.mark.parametrize("column", ["outcomes", *HIT])
def test_an_answer_to_another_number_of_hashes_is_refused(column: str) -> None:
    for asked in (1, 3):
        with pytest.raises(Unavailable, match="other counts"):
            hits_of(reply_of([HIT, HIT]), asked, LAYOUT)
    reply = reply_of([HIT, HIT])
    del getattr(reply, column)[-1]
    with pytest.raises(Unavailable, match="other counts"):
        hits_of(reply, 2, LAYOUT)


@given(st.binary(max_size=300), st.integers(1, 4))
def test_any_bytes_are_an_answer_that_makes_sense_or_none(sent: bytes, asked: int) -> None:
    try:
        reply = pb.OpenReply.FromString(sent)
    except Exception:
        return  # gRPC does not let them through
    try:
        rows = hits_of(reply, asked, LAYOUT)
    except Unavailable:
        return
    slots = slots_of(reply, rows)
    assert ((slots.tokens > 0) & (slots.tokens <= LAYOUT.block_tokens)).all()
