"""What is moved at a time over UCX: enough that moving is worth asking for, and towards the end of
a call less and less, so that little is left to prove when the last of it is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kvstore.layout import SlotLayout
from kvstore.limits import KiB, MiB
from kvstore.node.moves import Held
from kvstore.node.ucx_calls import pieces_of
from kvstore.transfer.frames import Status


def held(block_bytes: int) -> Held:
    layout = SlotLayout(layers=8, kv_heads=2, block_tokens=64, parts=2, run_bytes=block_bytes >> 11)
    slot = cast(Any, SimpleNamespace(tokens=64))
    return Held(slot, layout, layout.whole)


def sizes(blocks: int, block_bytes: int, behind: int = 0) -> list[int]:
    one = held(block_bytes)
    pieces = pieces_of([one] * blocks, range(blocks), behind)
    return [len(piece) * block_bytes for piece in pieces]


def test_pieces_are_large_and_the_last_ones_small() -> None:
    assert sizes(58, MiB) == [one * MiB for one in (16, 16, 13, 7, 3, 3)]


def test_what_others_follow_is_moved_in_one_piece() -> None:
    assert sizes(6, MiB, behind=58) == [6 * MiB]
    assert sizes(40, MiB, behind=1) == [16 * MiB, 16 * MiB, 8 * MiB], "unless it is much"


@given(st.integers(1, 200), st.sampled_from([64 * KiB, MiB, 4 * MiB]), st.integers(0, 1))
def test_no_piece_is_too_small_to_be_worth_it(blocks: int, block_bytes: int, behind: int) -> None:
    found = sizes(blocks, block_bytes, behind)
    assert sum(found) == blocks * block_bytes
    assert all(one >= 2 * MiB for one in found) or found == [blocks * block_bytes]
    assert all(one <= max(16 * MiB, block_bytes) + 2 * MiB for one in found)


def test_blocks_that_are_refused_have_no_piece_and_others_keep_their_places() -> None:
    one = held(4 * MiB)
    pieces = pieces_of([Status.REFUSED, one, Status.LAPSED, one, one], range(0, 50, 10), 0)
    assert [place for piece in pieces for _, place in piece] == [10, 30, 40]
