"""Writers, readers and hand-offs as a node's callers meet them."""

from __future__ import annotations

import pytest

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State
from kvstore.core.spread import Spread
from kvstore.errors import WindowClosed
from kvstore.layout import Fragment
from kvstore.memory.heads import Heads
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims
from kvstore.node.handles import Claim, Direction, Handles
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session
from kvstore.node.store import Reserved
from tests.node.rig import LARGE, SLAB, SMALL, Rig, payload_of, prompt, triples

TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))
LEFT, RIGHT = Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)


def follow(rig: Rig, session: Session, block: bytes, hand_off: bytes) -> Opened | Miss:
    return rig.store.open(session, SMALL, [block], [hand_off])[0]


def is_free(slot: Slot) -> bool:
    return slot.state is State.EMPTY


def joined(rig: Rig, session: Session, fragment: Fragment, start: int = 0) -> Reserved:
    """One member's window on the one block of a prompt, in writer group 'tp2'."""
    blocks = triples(prompt(SMALL, 4, start))
    one = rig.store.reserve(session, SMALL, blocks, fragment, "tp2")[0]
    assert one is not None
    rig.store.check()
    return one


def test_a_hash_of_one_namespace_names_nothing_in_another() -> None:
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 8)
    rig.put(me, SMALL, blocks)
    assert rig.match(LARGE, blocks.hashes) == (0, Miss.ABSENT)
    assert rig.store.open(me, LARGE, blocks.hashes) == [Miss.ABSENT] * 2
    assert len(rig.store.remove(rig.store.keys("default", LARGE, blocks.hashes))) == 0
    assert rig.hits(SMALL, blocks) == 2


def test_what_was_sealed_is_read_by_everyone_and_matched_along_its_prefix() -> None:
    rig = Rig()
    writer, reader = rig.session(), rig.session()
    blocks = prompt(SMALL, 14)  # three full blocks and a tail of two tokens
    assert rig.match(SMALL, blocks.hashes, 2) == (0, Miss.ABSENT)
    slots = rig.put(writer, SMALL, blocks)
    assert rig.match(SMALL, blocks.hashes, 2) == (4, None)
    opened = [rig.pinned(reader, block) for block in blocks.hashes]
    assert [one.slot for one in opened] == slots and slots[3].tokens == 2
    for one in opened:
        assert rig.read(one.slot, SMALL) == payload_of(one.slot, SMALL.layout)
    totals = rig.counters.totals()
    assert (totals["query_tokens"], totals["hit_tokens"]) == (28, 14)
    assert totals["sealed_bytes"] == SMALL.layout.block_bytes(14)
    rig.store.check()


def test_a_block_being_written_is_no_hit_and_says_so() -> None:
    rig = Rig()
    writer, blocks = rig.session(), prompt(SMALL, 4)
    window = rig.reserve(writer, SMALL, blocks)[0]
    assert rig.store.exists("default", SMALL, blocks.hashes) == [Miss.UNSEALED]
    assert rig.store.open(writer, SMALL, blocks.hashes) == [Miss.UNSEALED]
    rig.store.abort(writer, [window.handle])
    assert rig.store.exists("default", SMALL, blocks.hashes) == [Miss.ABSENT]
    rig.store.check()


def test_the_first_of_two_writers_to_seal_wins_and_the_second_is_told() -> None:
    rig = Rig()
    one, two, blocks = rig.session(), rig.session(), prompt(SMALL, 4)
    first, second = rig.reserve(one, SMALL, blocks)[0], rig.reserve(two, SMALL, blocks)[0]
    assert first.slot is not second.slot
    for window in (first, second):
        rig.write(window.slot, SMALL)
    assert rig.store.seal(two, [second.handle]) == ["sealed"]
    assert rig.store.seal(one, [first.handle]) == ["existed"]
    rig.store.check()
    assert first.slot.state is State.EMPTY, "the loser's memory is free at once"
    found = rig.pinned(one, blocks.hashes[0])
    assert found.slot is second.slot
    assert rig.read(found.slot, SMALL) == payload_of(second.slot, SMALL.layout)
    assert rig.store.reserve(one, SMALL, triples(blocks), SMALL.layout.whole) == [None]


def test_a_group_makes_one_block_and_its_last_seal_makes_it_readable() -> None:
    rig = Rig()
    rank0, rank1, block = rig.session(), rig.session(), prompt(SMALL, 4).hashes[0]
    left, right = joined(rig, rank0, LEFT), joined(rig, rank1, RIGHT)
    assert left.slot is right.slot
    rig.write(left.slot, SMALL, LEFT)
    assert rig.store.seal(rank0, [left.handle]) == ["waiting"]
    assert rig.store.exists("default", SMALL, [block]) == [Miss.UNSEALED]
    rig.write(right.slot, SMALL, RIGHT)
    assert rig.store.seal(rank1, [right.handle]) == ["sealed"]
    rig.store.check()
    slot = rig.pinned(rank0, block).slot
    assert rig.read(slot, SMALL) == payload_of(slot, SMALL.layout)


def test_a_group_goes_down_with_any_of_its_members_even_one_that_sealed() -> None:
    rig = Rig()
    rank0, rank1 = rig.session(), rig.session(mapped=True)
    left, right = joined(rig, rank0, LEFT), joined(rig, rank1, RIGHT)
    rig.write(left.slot, SMALL, LEFT)
    rig.store.seal(rank0, [left.handle])
    rig.end(rank0)
    rig.store.check()
    assert left.slot.state is State.DOOMED, "the other member may still write"
    with pytest.raises(WindowClosed, match="another writer of its group gave the block up"):
        rig.store.seal(rank1, [right.handle])
    again = joined(rig, rank1, SMALL.layout.whole)
    assert again.slot is not left.slot
    rig.store.abort(rank1, [right.handle])
    rig.store.check()
    assert right.slot.state is State.EMPTY and again.slot.state is State.FILLING


def a_stopped_writer_keeps_its_memory_until_its_process_is_gone() -> None:
    rig = Rig(slabs=1)  # room for 4
    stopped, other = rig.session(mapped=True), rig.session()
    windows = rig.reserve(stopped, SMALL, prompt(SMALL, 8))
    rig.end(stopped)
    rig.store.check()
    assert rig.store.exists("default", SMALL, prompt(SMALL, 8).hashes) == [Miss.ABSENT] * 2
    rig.put(other, SMALL, prompt(SMALL, 8, start=50))
    slots = [one.slot for one in rig.reserve(other, SMALL, prompt(SMALL, 8, start=90))]
    for window in windows:
        assert window.slot.state is State.DOOMED and window.slot not in slots
        rig.write(window.slot, SMALL)  # it wakes and writes: nobody is hurt
    rig.store.check()
    rig.process_gone(stopped)
    rig.store.check()
    assert all(window.slot.state is State.EMPTY for window in windows)


def test_a_stopped_writer_keeps_its_memory_until_its_process_is_gone() -> None:
    a_stopped_writer_keeps_its_memory_until_its_process_is_gone()


def test_a_writer_that_maps_nothing_leaves_nothing_behind() -> None:
    rig = Rig()
    writer = rig.session()
    windows = rig.reserve(writer, SMALL, prompt(SMALL, 8))
    rig.end(writer)
    rig.store.check()
    assert all(one.slot.state is State.EMPTY for one in windows)
    assert rig.counters.totals()["aborted_blocks"] == 2
    assert rig.blocks.slabs.empty_slabs == 4


def test_a_hand_off_is_followed_while_it_is_written_and_after_its_seal() -> None:
    rig = Rig()
    writer, reader = rig.session(), rig.session()
    block = prompt(SMALL, 4).hashes[0]
    window = rig.reserve(writer, SMALL, prompt(SMALL, 4))[0]
    hand_off = rig.hand_off(window)
    early = follow(rig, reader, block, hand_off)
    assert isinstance(early, Opened) and early.slot.state is State.FILLING
    rig.write(window.slot, SMALL)
    rig.store.seal(writer, [window.handle])
    late = follow(rig, reader, block, hand_off)
    assert isinstance(late, Opened) and late.slot is early.slot
    assert rig.read(late.slot, SMALL) == payload_of(window.slot, SMALL.layout)
    assert window.slot.pins == 2
    rig.store.check()


def a_hand_off_falls_back_to_the_key_when_its_slot_is_gone() -> None:
    rig = Rig(slabs=1)
    writer, reader = rig.session(), rig.session()
    blocks = prompt(SMALL, 4)
    window = rig.reserve(writer, SMALL, blocks)[0]
    hand_off = rig.hand_off(window)
    rig.store.abort(writer, [window.handle])
    assert follow(rig, reader, blocks.hashes[0], hand_off) is Miss.ABSENT
    others = rig.reserve(writer, SMALL, prompt(SMALL, 16, start=50))
    assert window.slot.offset in {one.slot.offset for one in others}
    assert follow(rig, reader, blocks.hashes[0], hand_off) is Miss.ABSENT
    rig.store.abort(writer, [one.handle for one in others])
    sealed = rig.put(writer, SMALL, blocks)[0]
    found = follow(rig, reader, blocks.hashes[0], hand_off)
    assert isinstance(found, Opened) and found.slot is sealed
    rig.store.check()


def test_a_hand_off_of_a_node_that_is_not_known_here_yet_falls_back_to_the_key() -> None:
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 8)
    there = Handles(epoch=3, node_id="new").seal(Claim(0, Direction.HAND_OFF, 0, 60.0))
    sealed = rig.put(me, SMALL, blocks, 0, 1)[0]
    first, second = rig.store.open(me, SMALL, blocks.hashes, [there, there])
    assert isinstance(first, Opened) and first.slot is sealed
    assert second is Miss.ABSENT


def test_a_hand_off_falls_back_to_the_key_when_its_slot_is_gone() -> None:
    a_hand_off_falls_back_to_the_key_when_its_slot_is_gone()


def test_a_hand_off_of_a_writer_that_came_second_leads_to_the_first() -> None:
    rig = Rig()
    writer, reader, blocks = rig.session(), rig.session(), prompt(SMALL, 4)
    window = rig.reserve(writer, SMALL, blocks)[0]
    hand_off = rig.hand_off(window)
    follower = follow(rig, reader, blocks.hashes[0], hand_off)
    first = rig.put(writer, SMALL, blocks)[0]
    rig.write(window.slot, SMALL)
    assert rig.store.seal(writer, [window.handle]) == ["existed"]
    assert window.slot.state is State.DOOMED, "its follower still holds it"
    found = follow(rig, reader, blocks.hashes[0], hand_off)
    assert isinstance(found, Opened) and found.slot is first
    assert isinstance(follower, Opened)
    rig.store.readers.close(reader, [follower.handle])
    assert is_free(window.slot)
    rig.store.check()


def test_a_hand_off_ends_by_the_clock() -> None:
    rig = Rig()
    writer, blocks = rig.session(), prompt(SMALL, 4)
    window = rig.reserve(writer, SMALL, blocks)[0]
    hand_off = rig.hand_off(window)
    rig.pass_time(600.1)
    assert follow(rig, writer, blocks.hashes[0], hand_off) is Miss.UNSEALED


def memory_that_is_pinned_is_not_used_again_before_it_is_let_go() -> None:
    rig = Rig(slabs=1)
    me = rig.session()
    blocks = prompt(SMALL, 4)
    rig.put(me, SMALL, blocks)
    pinned = rig.pinned(me, blocks.hashes[0])
    wanted = payload_of(pinned.slot, SMALL.layout)
    assert len(rig.store.remove(rig.store.keys("default", SMALL, blocks.hashes))) == 1
    assert pinned.slot.state is State.DOOMED
    rig.put(me, SMALL, prompt(SMALL, 12, start=50))
    rig.put(me, SMALL, prompt(SMALL, 12, start=90))
    assert rig.read(pinned.slot, SMALL) == wanted
    assert rig.store.readers.close(me, [pinned.handle]) == ([True], [pinned.slot])
    rig.store.check()
    assert is_free(pinned.slot)
    rig.put(me, SMALL, prompt(SMALL, 16, start=150))


def test_memory_that_is_pinned_is_not_used_again_before_it_is_let_go() -> None:
    memory_that_is_pinned_is_not_used_again_before_it_is_let_go()


def test_a_pin_ends_by_the_nodes_clock_alone_and_renewing_moves_its_end() -> None:
    rig = Rig()
    me, blocks = rig.session(), prompt(SMALL, 8)
    slots = rig.put(me, SMALL, blocks)
    one, two = (rig.pinned(me, block, pin_ms=1_000) for block in blocks.hashes)
    rig.pass_time(0.9)
    rig.store.readers.renew(me, [two.handle], 1_000)
    rig.pass_time(0.5)
    rig.store.expire()
    rig.store.check()
    assert [slot.pins for slot in slots] == [0, 1]
    assert rig.store.readers.close(me, [one.handle, two.handle]) == (
        [False, True],
        [None, slots[1]],
    )
    assert rig.counters.totals()["expired_pins"] == 1


def test_a_sessions_pins_end_with_it_though_its_process_lives() -> None:
    rig = Rig()
    writer, reader, blocks = rig.session(), rig.session(mapped=True), prompt(SMALL, 4)
    slot = rig.put(writer, SMALL, blocks)[0]
    rig.pinned(reader, blocks.hashes[0])
    rig.end(reader)
    rig.store.check()
    assert not slot.held


TWO = Spread.over([0, 1], 4 * SLAB, SLAB)  # room for 8 on each


@pytest.mark.parametrize(
    ("mapped", "numa_node", "near"),
    [(True, 1, True), (True, 0, False), (False, 1, False), (True, None, False), (True, 7, False)],
)
def test_blocks_of_a_caller_that_maps_the_arena_lie_on_its_numa_node(
    mapped: bool, numa_node: int | None, near: bool
) -> None:
    rig = Rig(spread=TWO)
    session = rig.session(mapped=mapped)
    session.numa_node = numa_node
    slots = rig.put(session, SMALL, prompt(SMALL, 16))
    assert [slot.offset >= 2 * SLAB for slot in slots] == [near] * 4


def test_a_near_numa_node_that_is_full_evicts_nothing_while_there_is_room() -> None:
    rig = Rig(spread=TWO)
    session = rig.session(mapped=True)
    session.numa_node = 1
    slots = rig.put(session, SMALL, prompt(SMALL, 64))
    assert [slot.offset >= 2 * SLAB for slot in slots] == [True] * 8 + [False] * 8
    assert rig.counters.totals()["evicted_blocks"] == 0
    more = rig.put(session, SMALL, prompt(SMALL, 4, start=1_000))
    assert len(more) == 1 and rig.counters.totals()["evicted_blocks"] == 1, "then as anywhere"
    rig.end(session)


def test_tenants_do_not_see_each_other() -> None:
    rig = Rig()
    blocks = prompt(SMALL, 4)
    slot = rig.put(rig.session(), SMALL, blocks)[0]
    assert rig.hits(SMALL, blocks, tenant="other") == 0
    theirs = rig.put(rig.session("other"), SMALL, blocks)[0]
    assert slot.key != theirs.key and rig.hits(SMALL, blocks, tenant="other") == 1
    assert len(rig.store.remove(rig.store.keys("other", SMALL, blocks.hashes))) == 1
    assert rig.hits(SMALL, blocks) == 1


def test_an_end_that_frees_mapped_windows_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "may_write", property(lambda self: False))
    with TURNS_RED:
        a_stopped_writer_keeps_its_memory_until_its_process_is_gone()


def test_a_hand_off_that_trusts_its_offset_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Claims,
        "handed_off",
        lambda self, session, handle, where: self._slabs.at(
            self._handles.open(handle, 3, where).serial
        ),
    )
    with TURNS_RED:
        test_a_hand_off_of_a_writer_that_came_second_leads_to_the_first()


def test_a_settle_that_forgets_readers_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Blocks.settle_all

    def rash(self: Blocks, slots: list[Slot]) -> None:
        for slot in slots:
            slot.pins = 0
        settle(self, slots)

    monkeypatch.setattr(Blocks, "settle_all", rash)
    with TURNS_RED:
        memory_that_is_pinned_is_not_used_again_before_it_is_let_go()


def test_a_head_that_is_not_marked_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heads, "mark", lambda self, slot: None)
    with TURNS_RED:
        memory_that_is_pinned_is_not_used_again_before_it_is_let_go()
