"""A handle is taken only by the process that made it, and only for what it was made for."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from kvstore.errors import NotYours
from kvstore.limits import HANDLE_BYTES_MAX
from kvstore.node.handles import HANDLE_BYTES, Claim, Direction, Handles

CLAIM = Claim(7, 4096, 2**40 + 1, Direction.READ, 3, 1234.5)


def test_a_handle_comes_back_as_the_claim_it_was_made_of() -> None:
    handles = Handles(epoch=9)
    for direction in Direction:
        claim = dataclasses.replace(CLAIM, direction=direction)
        handle = handles.seal(claim)
        assert handles.open(handle, direction, "handle") == claim
        assert len(handle) == HANDLE_BYTES <= HANDLE_BYTES_MAX


def test_every_flipped_bit_is_noticed() -> None:
    handles = Handles(epoch=9)
    handle = handles.seal(CLAIM)
    for at, bit in itertools.product(range(len(handle)), range(8)):
        forged = bytearray(handle)
        forged[at] ^= 1 << bit
        with pytest.raises(NotYours, match="was not made by this node since it started"):
            handles.open(bytes(forged), Direction.READ, "handle")


def test_handles_of_the_wrong_length_are_refused_with_both_lengths() -> None:
    handles = Handles(epoch=9)
    handle = handles.seal(CLAIM)
    for wrong in (b"", handle[:-1], handle + b"\0", handle[:49], handle[49:]):
        why = rf"hand_offs\[2\] is {len(wrong)} bytes; a handle has {HANDLE_BYTES}"
        with pytest.raises(NotYours, match=why):
            handles.open(wrong, Direction.READ, "hand_offs[2]")


def test_another_node_and_the_same_node_after_a_restart_refuse_it() -> None:
    handle = Handles(epoch=9).seal(CLAIM)
    for other in (Handles(epoch=9), Handles(epoch=10)):
        with pytest.raises(NotYours, match="was not made by this node"):
            other.open(handle, Direction.READ, "handle")


def test_a_handle_serves_only_what_it_was_made_for() -> None:
    handles = Handles(epoch=9)
    for made, wanted in itertools.permutations(Direction, 2):
        handle = handles.seal(dataclasses.replace(CLAIM, direction=made))
        why = f"is a {made.name} handle; this call takes a {wanted.name} handle"
        with pytest.raises(NotYours, match=why):
            handles.open(handle, wanted, "handle")
