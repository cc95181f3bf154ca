"""A refused call says what was wrong and what is right, and changes nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from kvstore.block import Miss
from kvstore.errors import (
    AlreadyWritten,
    Draining,
    Incomplete,
    Invalid,
    KVStoreError,
    Lapsed,
    NotYours,
    OutOfRange,
    Overloaded,
    PinExpired,
    WindowClosed,
    WrongTenant,
)
from kvstore.layout import Fragment
from kvstore.limits import PIN_MS_MAX
from kvstore.memory.heads import Heads
from kvstore.node import claims
from kvstore.node.readers import Opened
from tests.node.rig import LARGE, SMALL, Rig, prompt, triples

TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))
LEFT, RIGHT = Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)
WHOLE = SMALL.layout.whole


@contextmanager
def refused(rig: Rig, error: type[KVStoreError], match: str) -> Iterator[None]:
    """The body raises `error`, and everything is as it was."""
    before = rig.all_there_is()
    with pytest.raises(error, match=match):
        yield
    assert rig.all_there_is() == before
    rig.store.check()


def test_only_its_own_writer_may_use_a_window() -> None:
    rig = Rig()
    mine, theirs = rig.session(), rig.session()
    window = rig.reserve(mine, SMALL, prompt(SMALL, 4))[0]
    rig.write(window.slot, SMALL)
    for call in (rig.store.seal, rig.store.abort):
        with refused(rig, NotYours, r"handles\[0\] belongs to another session"):
            call(theirs, [window.handle])
    assert rig.store.seal(mine, [window.handle]) == ["sealed"]


def test_a_window_is_sealed_once() -> None:
    rig = Rig()
    me = rig.session()
    window = rig.reserve(me, SMALL, prompt(SMALL, 4))[0]
    rig.write(window.slot, SMALL)
    with refused(rig, Invalid, "a handle stands twice in one call"):
        rig.store.seal(me, [window.handle, window.handle])
    rig.store.seal(me, [window.handle])
    with refused(rig, WindowClosed, r"handles\[0\] was sealed, aborted, or"):
        rig.store.seal(me, [window.handle])
    before = rig.all_there_is()
    rig.store.abort(me, [window.handle])  # no mistake, and no harm
    assert rig.all_there_is() == before


def test_a_member_seals_once_too() -> None:
    rig = Rig()
    me = rig.session()
    window = rig.store.reserve(me, SMALL, triples(prompt(SMALL, 4)), LEFT, "tp2")[0]
    assert window is not None
    rig.write(window.slot, SMALL, LEFT)
    assert rig.store.seal(me, [window.handle]) == ["waiting"]
    with refused(rig, WindowClosed, "was sealed, aborted, or"):
        rig.store.seal(me, [window.handle])


def a_seal_with_a_strip_missing_names_its_layer_and_head() -> None:
    rig = Rig()
    me = rig.session()
    windows = rig.reserve(me, SMALL, prompt(SMALL, 12))
    for part in (Fragment(0, 1, 0, 2), Fragment(1, 1, 0, 1)):
        rig.write(windows[1].slot, SMALL, part)
    for whole in (windows[0], windows[2]):
        rig.write(whole.slot, SMALL)
    why = r"handles\[1\]: layers 1\.\.1 of heads 1\.\.1 not written; the window is layers 0\.\.1"
    with refused(rig, Incomplete, why):
        rig.store.seal(me, [one.handle for one in windows])
    rig.write(windows[1].slot, SMALL, Fragment(1, 1, 1, 1))
    assert rig.store.seal(me, [one.handle for one in windows]) == ["sealed"] * 3


def test_a_seal_with_a_strip_missing_names_its_layer_and_head() -> None:
    a_seal_with_a_strip_missing_names_its_layer_and_head()


def test_a_seal_that_does_not_look_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heads, "first_unwritten", lambda self, slots, layout, fragment: None)
    with TURNS_RED:
        a_seal_with_a_strip_missing_names_its_layer_and_head()


def test_members_of_a_group_agree_on_the_block_and_own_separate_parts() -> None:
    rig = Rig()
    rank0, rank1 = rig.session(), rig.session()
    blocks = prompt(SMALL, 8)
    both = triples(blocks)
    assert None not in rig.store.reserve(rank0, SMALL, both, LEFT, "tp2")
    for clash in (LEFT, WHOLE):
        with refused(rig, AlreadyWritten, "of writer group 'tp2' has reserved|'tp2', which"):
            rig.store.reserve(rank1, SMALL, both, clash, "tp2")
    tail = [both[0], (*both[1][:2], 3)]
    with refused(rig, Invalid, "tokens 3: this writer group fills a block of 4"):
        rig.store.reserve(rank1, SMALL, tail, RIGHT, "tp2")
    with refused(rig, Invalid, "behind another parent"):
        rig.store.reserve(rank1, SMALL, [(both[1][0], b"p" * 32, 4)], RIGHT, "tp2")
    assert None not in rig.store.reserve(rank1, SMALL, both, RIGHT, "tp2")


def test_a_reservation_that_makes_no_sense_is_refused() -> None:
    rig = Rig()
    me, blocks = rig.session(), triples(prompt(SMALL, 4))
    with refused(rig, Invalid, "a hash stands twice in one call"):
        rig.store.reserve(me, SMALL, blocks * 2, WHOLE)
    with refused(rig, OutOfRange, r"the block has layers 0\.\.1"):
        rig.store.reserve(me, SMALL, blocks, Fragment(0, 3, 0, 2))


def test_a_pool_full_of_what_is_held_takes_nothing_from_anybody() -> None:
    rig = Rig(slabs=2)  # room for 8
    me = rig.session()
    rig.put(me, SMALL, prompt(SMALL, 12))
    rig.pinned(me, prompt(SMALL, 12).hashes[1])  # keeps the first block with it
    rig.reserve(me, SMALL, prompt(SMALL, 8, start=50))
    with refused(rig, Overloaded, "no room for 5 blocks of 8192 bytes"):
        rig.reserve(me, SMALL, prompt(SMALL, 20, start=90))
    assert rig.counters.totals()["overloaded"] == 1
    rig.reserve(me, SMALL, prompt(SMALL, 16, start=90))  # 3 are free, 1 is the leaf


def test_a_pin_that_expired_was_closed_or_is_another_sessions_is_refused() -> None:
    rig = Rig()
    me, other, blocks = rig.session(), rig.session(), prompt(SMALL, 12)
    rig.put(me, SMALL, blocks)
    long, short, closed = (
        rig.pinned(me, block, pin_ms=ms)
        for block, ms in zip(blocks.hashes, (9_000, 1_000, 9_000), strict=True)
    )
    rig.store.readers.close(me, [closed.handle])
    rig.pass_time(1.25)
    handles = [long.handle, short.handle]
    for swept, why in enumerate(("expired 250 ms ago", "was closed before, or expired")):
        for call in (partial(rig.store.readers.renew, pin_ms=1_000), rig.store.readers.unpin):
            with refused(rig, PinExpired, rf"handles\[1\] {why} by this node's clock"):
                call(me, handles)
            with refused(rig, Lapsed, r"handles\[1\] was closed before"):
                call(me, [long.handle, closed.handle])
        if not swept:
            rig.store.expire()
    with refused(rig, Invalid, "a handle stands twice"):
        rig.store.readers.unpin(me, [long.handle] * 2)
    for refusal in (
        lambda: rig.store.readers.renew(other, [long.handle], 1_000),
        lambda: rig.store.readers.unpin(other, [long.handle]),
        lambda: rig.store.readers.close(other, [long.handle]),
    ):
        with refused(rig, NotYours, r"handles\[0\] belongs to another session"):
            refusal()


def test_of_a_pin_that_was_renewed_and_is_gone_nobody_says_when_it_expired() -> None:
    """Its handle has the time that it was given first."""
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 4)
    rig.put(me, SMALL, blocks)
    pin = rig.pinned(me, blocks.hashes[0], pin_ms=1_000)
    rig.store.readers.renew(me, [pin.handle], 9_000)
    rig.pass_time(5.0)
    rig.store.readers.close(me, [pin.handle])
    with refused(rig, PinExpired, r"handles\[0\] was closed before, or expired by this node's"):
        rig.store.readers.unpin(me, [pin.handle])


def test_a_pin_longer_than_the_longest_is_refused() -> None:
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 4)
    rig.put(me, SMALL, blocks)
    pin = rig.pinned(me, blocks.hashes[0])
    for call in (
        lambda: rig.store.open(me, SMALL, blocks.hashes, (), PIN_MS_MAX + 1),
        lambda: rig.store.readers.renew(me, [pin.handle], PIN_MS_MAX + 1),
    ):
        with refused(rig, Invalid, f"at most {PIN_MS_MAX}"):
            call()


@pytest.mark.parametrize("spoil", ["truncated", "forged", "of another node", "of another use"])
def test_a_handle_that_is_none_is_refused_everywhere(spoil: str) -> None:
    rig, elsewhere = Rig(), Rig()
    me, blocks = rig.session(), prompt(SMALL, 8)
    window = rig.reserve(me, SMALL, blocks, 1)[0]
    rig.write(window.slot, SMALL)
    rig.put(me, SMALL, blocks, 0, 1)
    pin = rig.pinned(me, blocks.hashes[0])
    foreign = elsewhere.reserve(elsewhere.session(), SMALL, blocks)[0]

    def spoiled(handle: bytes, theirs: bytes, other_use: bytes) -> bytes:
        return {
            "truncated": handle[:-1],
            "forged": handle[:-1] + bytes([handle[-1] ^ 1]),
            "of another node": theirs,
            "of another use": other_use,
        }[spoil]

    write = spoiled(window.handle, foreign.handle, pin.handle)
    read = spoiled(pin.handle, foreign.handle, window.handle)
    hand_off = spoiled(rig.hand_off(window), elsewhere.hand_off(foreign), window.handle)
    store = rig.store
    for call in (
        lambda: store.seal(me, [window.handle, write]),
        lambda: store.abort(me, [window.handle, write]),
        lambda: store.readers.close(me, [pin.handle, read]),
        lambda: store.readers.renew(me, [pin.handle, read], 1_000),
        lambda: store.readers.unpin(me, [pin.handle, read]),
        lambda: store.open(me, SMALL, blocks.hashes, [b"", hand_off]),
    ):
        with refused(rig, NotYours, r"(handles|hand_offs)\[1\] (is|was not made)"):
            call()


def test_a_hand_off_opens_nothing_for_another_tenant() -> None:
    rig = Rig()
    mine, theirs, blocks = rig.session(), rig.session("other"), prompt(SMALL, 4)
    window = rig.reserve(mine, SMALL, blocks)[0]
    with refused(rig, WrongTenant, r"hand_offs\[0\] belongs to another tenant"):
        rig.store.open(theirs, SMALL, blocks.hashes, [rig.hand_off(window)])


def test_a_hand_off_whose_slab_was_cut_anew_is_over() -> None:
    """Its offset now lies in the end of a slab, where no slot stands."""
    rig = Rig(slabs=1)
    me, small = rig.session(), prompt(SMALL, 16)
    windows = rig.reserve(me, SMALL, small)
    last = max(windows, key=lambda one: one.slot.offset)
    hand_offs = [rig.hand_off(one) for one in windows]
    rig.store.abort(me, [one.handle for one in windows])
    rig.put(me, LARGE, prompt(LARGE, 8))
    assert last.slot.offset == 2 * LARGE.layout.slot_bytes
    rig.store.open(me, SMALL, [small.hashes[0]] * len(windows), hand_offs)
    rig.store.check()


def test_a_draining_node_takes_no_new_blocks_and_finishes_the_old() -> None:
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 4)
    window = rig.reserve(me, SMALL, blocks)[0]
    rig.store.draining = True
    with refused(rig, Draining, "this node is draining: write to another"):
        rig.reserve(me, SMALL, prompt(SMALL, 4, start=50))
    rig.write(window.slot, SMALL)
    assert rig.store.seal(me, [window.handle]) == ["sealed"]
    assert rig.read(rig.pinned(me, blocks.hashes[0]).slot, SMALL)


def test_no_tenant_takes_all_the_pins_that_a_node_gives_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "HOLDS_MAX", 16)
    rig, block = Rig(), prompt(SMALL, 4)
    greedy, other = rig.session(), rig.session("other")
    for one in (greedy, other):
        rig.put(one, SMALL, block)
    held = rig.store.open(greedy, SMALL, block.hashes * 12)
    with refused(rig, Overloaded, r"12 pins of default are open, of 12 in all; 1 more"):
        rig.store.open(rig.session(), SMALL, block.hashes)
    assert rig.pinned(other, block.hashes[0])
    assert rig.store.open(greedy, SMALL, prompt(SMALL, 4, 99).hashes) == [Miss.ABSENT]
    rig.store.readers.close(greedy, [one.handle for one in held if isinstance(one, Opened)])
    assert rig.pinned(greedy, block.hashes[0])
    rig.store.check()


def test_no_tenant_takes_all_the_windows_that_a_node_gives_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "HOLDS_MAX", 8)
    rig = Rig()
    greedy = rig.session()
    windows = rig.reserve(greedy, SMALL, prompt(SMALL, 4 * 6))
    with refused(rig, Overloaded, r"6 write windows of default are open, of 6 in all; 1 more"):
        rig.reserve(greedy, SMALL, prompt(SMALL, 4, 99))
    assert rig.reserve(rig.session("other"), SMALL, prompt(SMALL, 4))
    rig.store.abort(greedy, [one.handle for one in windows])
    assert rig.reserve(greedy, SMALL, prompt(SMALL, 4, 99))
    rig.store.check()
