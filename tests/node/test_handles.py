"""A handle is taken only by the process that made it, and only for what it was made for."""

from __future__ import annotations

import itertools

import pytest

from kvstore.errors import NotYours
from kvstore.limits import HANDLE_BYTES_MAX, RPC_KEYS_MAX
from kvstore.node.handles import HANDLE_BYTES, Claim, Direction, Handles

CLAIM = Claim(7, Direction.READ, 3, 1234.5, generation=2**40 + 1)


def test_a_handle_comes_back_as_the_claim_it_was_made_of() -> None:
    handles = Handles(epoch=9)
    for direction in Direction:
        claim = CLAIM._replace(direction=direction)
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


def test_a_handle_of_an_earlier_epoch_or_of_another_node_is_astray_and_no_other_is() -> None:
    handles = Handles(9, "a")
    handle = handles.seal(CLAIM)
    assert not handles.astray(handle)
    assert Handles(9, "b").astray(handle), "it is another node's"
    assert not Handles(10, "a").astray(handle[:-1]), "it is no handle"
    assert Handles(10, "a").astray(handle), "started anew"
    handles.renew(10)
    assert handles.astray(handle), "held for dead"


def test_a_handle_serves_only_what_it_was_made_for() -> None:
    handles = Handles(epoch=9)
    for made, wanted in itertools.permutations(Direction, 2):
        handle = handles.seal(CLAIM._replace(direction=made))
        why = f"is a {made.name} handle; this call takes a {wanted.name} handle"
        with pytest.raises(NotYours, match=why):
            handles.open(handle, wanted, "handle")


def a_call_of(count: int) -> tuple[Handles, list[bytes]]:
    handles = Handles(epoch=9)
    return handles, handles.seal_all(CLAIM, count)


def test_each_handle_of_a_call_comes_back_by_itself_and_all_of_them_together() -> None:
    handles, made = a_call_of(RPC_KEYS_MAX)
    for at in (0, 1, 777, RPC_KEYS_MAX - 1):
        own = CLAIM._replace(serial=CLAIM.serial + at)
        assert handles.open(made[at], Direction.READ, "handle") == own
        assert handles.open_run(made[at:], Direction.READ) == own
    assert len(set(made)) == RPC_KEYS_MAX


def test_forged_handles_with_the_last_serials_there_are_are_refused_as_any() -> None:
    """Those after them would pass what a serial can be."""
    handles = Handles(epoch=9)
    last = handles.seal(CLAIM._replace(serial=2**64 - 1))
    forged = last[:-1] + bytes([last[-1] ^ 1])
    assert handles.open_run([forged, forged], Direction.READ) is None


def test_handles_with_a_gap_or_in_another_order_are_no_run() -> None:
    handles, made = a_call_of(5)
    again = handles.seal_all(CLAIM._replace(serial=CLAIM.serial + 5), 2)
    for some in ([], made[::2], made[::-1], [made[0], made[0]], [*made, *again], [b"", *made]):
        assert handles.open_run(some, Direction.READ) is None
    assert handles.open_run(made, Direction.WRITE) is None


def test_every_flipped_bit_is_noticed_in_a_run_too() -> None:
    handles, made = a_call_of(3)
    for one, at, bit in itertools.product(range(3), range(len(made[0])), range(8)):
        forged = bytearray(made[one])
        forged[at] ^= 1 << bit
        some = [*made[:one], bytes(forged), *made[one + 1 :]]
        assert handles.open_run(some, Direction.READ) is None
        with pytest.raises(NotYours, match="was not made by this node since it started"):
            handles.open(bytes(forged), Direction.READ, "handle")


def test_a_handle_says_nothing_of_those_that_no_call_made() -> None:
    """Nobody who has one can make the next: neither that of its call nor that of another."""
    handles, made = a_call_of(1)
    further = handles.seal_all(CLAIM, 2)[1]
    assert further[:-16] not in made[0]
    forged = further[:-16] + made[0][-16:]
    assert handles.open_run([made[0], forged], Direction.READ) is None
    with pytest.raises(NotYours):
        handles.open(forged, Direction.READ, "handle")
