"""What is moved at a time over UCX: enough that moving is worth asking for, and towards the end of
a call less and less, so that little is left to prove when the last of it is there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import KiB, MiB
from kvstore.node.moves import Held
from kvstore.node.ucx_calls import UcxCalls, _Region, pieces_of
from kvstore.transfer.frames import Segment, Status
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_memory import Registration


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


def test_a_caller_hears_that_it_was_hung_up_on_when_nothing_of_its_memory_is_moved_any_more() -> (
    None
):
    """It lets go of the memory then, and what lay there next would be written over."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream, over = DataStream(ours), list[bool]()

    def moving(_: Registration, pieces: Iterator[Any]) -> Iterator[None]:
        try:
            for _ in pieces:
                yield
        finally:
            with pytest.raises(BlockingIOError):  # nobody has hung up
                theirs.recv(1)
            over.append(True)

    arena = cast(Any, SimpleNamespace(size=8 * MiB))
    calls = UcxCalls(None, stream, cast(Any, None), arena)
    agent = cast(Any, SimpleNamespace(write=moving))
    calls._regions.append(_Region(0, 8 * MiB, Registration(1, Segment.DRAM), agent))
    landing = calls.write([[held(4 * MiB)]], [0], 0)
    next(landing)
    stream.end()
    landing.close()
    assert over and theirs.recv(1) == b"", "now it has been hung up on"
    with pytest.raises(Unavailable):
        next(calls.write([[held(4 * MiB)]], [0], 0))
    assert len(over) == 1, "nothing is moved after it"
    stream.close()
    theirs.close()
