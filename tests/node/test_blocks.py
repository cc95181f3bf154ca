"""Room is made from the coldest end, for everybody, and never at the cost of a refused caller."""

from __future__ import annotations

import pytest

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State
from kvstore.errors import Invalid, Overloaded
from kvstore.layout import HEAD, Fragment, SlotLayout
from kvstore.node.blocks import Blocks
from tests.node.rig import LARGE, SMALL, Rig, payload_of, prompt, triples

HALVES = (Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1))
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))


def test_a_full_pool_evicts_the_leaves_of_the_coldest_prompt() -> None:
    rig = Rig(slabs=2)  # room for 8
    me = rig.session()
    old, young = prompt(SMALL, 16), prompt(SMALL, 16, start=1000)
    rig.put(me, SMALL, old)
    rig.put(me, SMALL, young)
    assert rig.hits(SMALL, young) == rig.hits(SMALL, old) == 4  # old was touched last
    rig.put(me, SMALL, prompt(SMALL, 12, start=2000))
    assert rig.hits(SMALL, old) == 4
    assert rig.match(SMALL, young.hashes) == (1, Miss.EVICTED)
    assert rig.counters.totals()["evicted_blocks"] == 3


def head_of(rig: Rig, slot: Slot) -> tuple[int, int]:
    """Generation and state, as they stand in memory."""
    _, generation, state, *_ = HEAD.unpack_from(rig.arena.view, slot.offset)
    return generation, state


@pytest.mark.parametrize("wanted", [1, 5, 20])
def test_whoever_looks_sees_at_once_that_a_block_was_evicted(wanted: int) -> None:
    rig = Rig(slabs=8)  # room for 32
    me = rig.session()
    slots = rig.put(me, SMALL, prompt(SMALL, 128))
    before = [head_of(rig, slot) for slot in slots]
    rig.blocks._make_room(rig.blocks.slabs, SMALL.owner, "default", SMALL.layout, wanted, ())
    after, left = [head_of(rig, slot) for slot in slots], 32 - wanted
    assert after[:left] == before[:left]
    assert all(state == State.EMPTY for _, state in after[left:])
    assert all(now[0] > was[0] for now, was in zip(after[left:], before[left:], strict=True))
    assert [one for one, _ in after] == [slot.generation for slot in slots]


def test_one_that_pins_a_block_twice_lets_go_of_both_at_once() -> None:
    rig = Rig()
    me = rig.session()
    slot = rig.put(me, SMALL, prompt(SMALL, 4))[0]
    for _ in range(2):
        rig.pinned(me, prompt(SMALL, 4).hashes[0])
    rig.blocks.drop(slot, Miss.REMOVED)
    assert slot.state is State.DOOMED
    rig.end(me)
    assert slot.state is State.EMPTY
    rig.store.check()


def test_an_empty_slab_of_another_owner_is_used_and_a_full_one_emptied() -> None:
    rig = Rig(slabs=2)
    me = rig.session()
    cold, warm = prompt(SMALL, 16), prompt(SMALL, 16, start=1000)
    rig.put(me, SMALL, cold)
    rig.put(me, SMALL, warm)
    large = prompt(LARGE, 8)
    rig.put(me, LARGE, large)
    assert (rig.hits(SMALL, cold), rig.hits(LARGE, large), rig.hits(SMALL, warm)) == (0, 2, 4)
    rig.put(me, LARGE, prompt(LARGE, 4, start=1000))
    assert rig.hits(SMALL, warm) == 4, "an owner evicts its own before what is used more"
    assert rig.hits(LARGE, large) == 1


def test_what_a_model_left_behind_makes_room_for_the_next() -> None:
    """Each call could have room of its own blocks: but those that nobody uses any more go first."""
    rig = Rig(slabs=8)  # room for 32 of the old, and 16 of the new
    me = rig.session()
    old = [prompt(SMALL, 4, start=1000 * number) for number in range(32)]
    new = [prompt(LARGE, 4, start=1000 * number) for number in range(12)]
    for one in old:
        rig.put(me, SMALL, one)
    for one in new:  # the first takes the coldest slab, whatever else is in that
        rig.put(me, LARGE, one)
        assert rig.hits(SMALL, old[4]) == 1, "with what shares its slab it stays"
    assert sum(rig.hits(LARGE, one) for one in new) == 12
    assert [sum(rig.hits(SMALL, one) for one in old[n : n + 4]) for n in (4, 8)] == [4, 0]
    rig.store.check()


def test_a_slab_in_which_anything_is_used_held_or_anothers_stays() -> None:
    rig = Rig(slabs=4)
    me, other = rig.session(), rig.session("other")
    slabs = [[prompt(SMALL, 4, start=1000 * (4 * s + n)) for n in range(4)] for s in range(2)]
    for one in slabs[0] + slabs[1][:3]:
        rig.put(me, SMALL, one)
    rig.put(other, SMALL, slabs[1][3])
    rig.pinned(me, slabs[0][2].hashes[0])
    for number in range(4):
        rig.put(me, LARGE, prompt(LARGE, 4, start=1000 * number))  # fills what is left
    rig.put(me, LARGE, prompt(LARGE, 4, start=9000))
    assert rig.hits(LARGE, prompt(LARGE, 4)) == 0, "its own coldest went"
    assert sum(rig.hits(SMALL, one) for one in slabs[0] + slabs[1][:3]) == 7
    assert rig.hits(SMALL, slabs[1][3], "other") == 1


def test_a_slab_with_a_held_block_stays_with_its_owner() -> None:
    rig = Rig(slabs=2)
    me = rig.session()
    pinned, free = prompt(SMALL, 16), prompt(SMALL, 16, start=1000)
    rig.put(me, SMALL, pinned)
    rig.put(me, SMALL, free)
    rig.pinned(me, pinned.hashes[0])
    rig.put(me, LARGE, prompt(LARGE, 8))
    assert (rig.hits(SMALL, pinned), rig.hits(SMALL, free)) == (4, 0)
    before = rig.all_there_is()
    with pytest.raises(Overloaded, match="no room for 3 blocks of 12288 bytes"):
        rig.reserve(me, LARGE, prompt(LARGE, 12, start=50))
    assert rig.all_there_is() == before


def test_a_call_that_cannot_be_served_costs_nobody_a_block() -> None:
    rig = Rig(slabs=2)
    me = rig.session()
    mine, theirs = prompt(SMALL, 16), prompt(LARGE, 8)
    rig.put(me, SMALL, mine)
    rig.put(me, LARGE, theirs)
    before = rig.all_there_is()
    with pytest.raises(Overloaded) as refused:
        rig.reserve(me, SMALL, prompt(SMALL, 36, start=1000))
    assert rig.all_there_is() == before and refused.value.retry_after_ms > 0
    rig.put(me, SMALL, prompt(SMALL, 32, start=1000))
    assert (rig.hits(SMALL, mine), rig.hits(LARGE, theirs)) == (0, 0)


def test_a_block_is_never_evicted_for_the_one_right_behind_it() -> None:
    rig = Rig(slabs=1)  # room for 4
    me = rig.session()
    blocks = prompt(SMALL, 20)
    rig.put(me, SMALL, blocks, 0, 4)
    with pytest.raises(Overloaded):
        rig.reserve(me, SMALL, blocks, 4, 5)
    assert rig.hits(SMALL, blocks) == 4


def test_a_block_the_caller_is_told_exists_is_not_evicted_by_the_same_call() -> None:
    rig = Rig(slabs=1)  # room for 4
    rank0, rank1 = rig.session(), rig.session()
    blocks, other, left, right = prompt(SMALL, 12), prompt(SMALL, 8, 50), *HALVES
    rig.put(rank0, SMALL, blocks, 0, 1)
    rig.store.reserve(rank0, SMALL, triples(blocks, 1, 2), left, "tp2")
    rig.put(rank0, SMALL, other)
    rest = rig.store.reserve(rank1, SMALL, triples(blocks), right, "tp2")
    assert [one is not None for one in rest] == [False, True, True]
    assert rig.hits(SMALL, blocks) == rig.hits(SMALL, other) == 1, "the coldest was spared"


def test_a_torn_prompt_is_written_anew_in_place_of_its_unlisted_blocks() -> None:
    rig = Rig(slabs=1)
    me, blocks = rig.session(), prompt(SMALL, 16)
    rig.put(me, SMALL, blocks)
    rig.store.remove(rig.store.keys("default", SMALL, blocks.hashes[:1]))
    rig.put(me, SMALL, blocks)
    assert rig.hits(SMALL, blocks) == 4


def test_a_slot_larger_than_a_slab_is_refused_before_anything_is_evicted() -> None:
    rig = Rig(slabs=1)
    me = rig.session()
    rig.put(me, SMALL, prompt(SMALL, 16))
    before = rig.all_there_is()
    huge = SlotLayout(layers=9, kv_heads=1, block_tokens=4, parts=2, run_bytes=1024)
    with pytest.raises(Invalid, match="start the node with a larger --slab"):
        rig.blocks.fill((b"huge" * 8, 0), huge, triples(prompt(SMALL, 4)), "default", (), [0])
    assert rig.all_there_is() == before


def test_one_flipped_bit_drops_that_block_alone_and_unlists_what_is_behind() -> None:
    rig = Rig()
    me = rig.session()
    blocks = prompt(SMALL, 20)
    slots = rig.put(me, SMALL, blocks)
    assert all(rig.blocks.examine(slot, SMALL.layout) for slot in slots)
    rig.flip(slots[2], SMALL)
    fine = [rig.blocks.examine(slot, SMALL.layout) for slot in slots]
    assert fine == [True, True, False, True, True]
    rig.store.check()
    found = rig.store.exists("default", SMALL, blocks.hashes)
    assert found == [None, None, Miss.DAMAGED, Miss.UNLISTED, Miss.UNLISTED]
    assert rig.counters.totals()["damaged_blocks"] == 1
    rig.put(me, SMALL, blocks, 2, 3)
    assert rig.store.exists("default", SMALL, blocks.hashes) == [None] * 5
    assert [rig.read(rig.pinned(me, h).slot, SMALL) for h in blocks.hashes[3:]] == [
        payload_of(slot, SMALL.layout) for slot in slots[3:]
    ]


def test_the_generation_in_memory_is_new_before_anybody_else_gets_the_bytes() -> None:
    """A reader past its pin compares the generation after its copy: it must not be fooled."""
    rig = Rig(slabs=1)
    me = rig.session()
    blocks = prompt(SMALL, 4)
    slot = rig.put(me, SMALL, blocks)[0]
    seen = slot.generation
    head = rig.arena.bytes[slot.offset + 8 : slot.offset + 16].view("<u8")
    assert int(head[0]) == seen
    rig.store.remove(rig.store.keys("default", SMALL, blocks.hashes))
    assert slot.state is State.EMPTY and int(head[0]) > seen
    freed = int(head[0])
    again = rig.reserve(me, SMALL, prompt(SMALL, 16, start=9))
    assert slot.offset in {one.slot.offset for one in again} and int(head[0]) > freed


def damage(rig: Rig, slot: Slot, name: str, value: object) -> None:
    right = getattr(slot, name)
    setattr(slot, name, value)
    with pytest.raises(AssertionError):
        rig.blocks.check()
    setattr(slot, name, right)
    rig.blocks.check()


def test_check_notices_what_cannot_be() -> None:
    rig = Rig()
    me = rig.session()
    sealed = rig.put(me, SMALL, prompt(SMALL, 8))[0]
    filling = rig.reserve(me, SMALL, prompt(SMALL, 4, start=50))[0].slot
    for name, value in [
        *(("state", State.EMPTY), ("state", State.DOOMED), ("generation", 999), ("root", b"")),
        *(("key", b"x" * 32), ("listed", False), ("offset", 4096), ("tokens", 3)),
        *(("owner", LARGE.owner), ("children", set())),
    ]:
        damage(rig, sealed, name, value)
    for name, value in [("state", State.SEALED), ("state", State.DOOMED), ("root", b"r" * 16)]:
        damage(rig, filling, name, value)
    rig.arena.bytes[sealed.offset + 16] ^= 1
    with pytest.raises(AssertionError, match="the head of slot"):
        rig.blocks.check()


def test_a_doomed_slot_that_nobody_frees_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Blocks, "settle_all", lambda self, slots: None)
    with TURNS_RED:
        test_a_full_pool_evicts_the_leaves_of_the_coldest_prompt()


def test_an_eviction_before_the_refusal_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_room = Blocks._make_room

    def one_first(self: Blocks, *args: object) -> None:
        first = next(iter(self.index.coldest()), None)
        if first is not None and not self.slabs.empty_slabs:
            self.drop(first, Miss.EVICTED)
        make_room(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Blocks, "_make_room", one_first)
    with TURNS_RED:
        test_a_call_that_cannot_be_served_costs_nobody_a_block()


def test_an_examination_that_looks_at_the_table_alone_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "kvstore.node.blocks.intact",
        lambda view, heads, slot, layout: heads.root(slot, layout) == slot.root,
    )
    with TURNS_RED:
        test_one_flipped_bit_drops_that_block_alone_and_unlists_what_is_behind()
