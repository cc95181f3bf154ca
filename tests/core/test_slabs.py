"""Slots never overlap, never repeat a generation, and an empty slab goes to whoever needs it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvstore.core.lifecycle import Owner, Slot
from kvstore.core.slabs import Slab, Slabs
from kvstore.errors import Invalid

SLAB = 100
SLABS = 6
ON_TWO = (3, 3, 3, 3, 7, 7)  # the NUMA node of each slab
SIZES: dict[Owner, int] = {(b"a", 0): 10, (b"a", 1): 33, (b"b", 0): 50, (b"c", 0): 100}
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))


def live_bytes(used: dict[Slot, int]) -> list[tuple[int, int]]:
    return sorted((slot.offset, slot.offset + size) for slot, size in used.items())


def has_room(node: int, owner: Owner, used: dict[Slot, int], first: int) -> bool:
    """Whether a slab of `ON_TWO` on that NUMA node is empty, or the owner's and not full."""
    for number in (number for number, on in enumerate(ON_TWO) if on == node):
        owners = [slot.owner for slot in used if (slot.offset - first) // SLAB == number]
        if set(owners) <= {owner} and len(owners) < SLAB // SIZES[owner]:
            return True
    return False


def takes_and_gives_never_clash(
    seed: int, steps: int = 1_500, first: int = 0, numa: Sequence[int] = ()
) -> None:
    dice = random.Random(seed)
    slabs = Slabs(SLABS * SLAB + 7, SLAB, first=first, numa=numa)
    used: dict[Slot, int] = {}
    seen: set[int] = set()

    def renewed(slot: Slot) -> None:
        assert slot.generation not in seen, "a generation came back"
        seen.add(slot.generation)

    owner = (b"a", 0)
    for _ in range(steps):
        if dice.random() < 0.1:
            owner = dice.choice(list(SIZES))
        if dice.random() < 0.5:
            size, room = SIZES[owner], slabs.room(owner, SIZES[owner])
            near = dice.choice([None, 3, 7, 9])
            there = near in numa and has_room(near or 0, owner, used, first)
            slot = next(iter(slabs.take_all(owner, size, 1, near)), None)
            assert (slot is not None) == (room > 0), "how many there are is for nobody to be near"
            if slot is not None and near in numa:
                assert (slabs.slab_of(slot).numa == near) == there, "near first, then anywhere"
            if slot is not None:
                assert slot.owner == owner and slot not in used
                renewed(slot)
                used[slot] = size
                assert slabs.room(owner, size) == room - 1
        elif used:
            slot = dice.choice(list(used))
            del used[slot]
            slabs.give_all([slot])
            renewed(slot)
        owners = {slot.owner for slot in used}
        assert all(slabs.owns(one) == (one in owners) for one in SIZES)
        ranges = live_bytes(used)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
        last = first + slabs.capacity_bytes
        assert all(start >= first and end <= last for start, end in ranges)
        assert all(start // SLAB == (end - 1) // SLAB for start, end in ranges)
        slabs.check()


@pytest.mark.parametrize("numa", [(), ON_TWO])
@pytest.mark.parametrize("first", [0, 3 * SLAB])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_live_slots_share_a_byte_and_no_generation_returns(
    seed: int, first: int, numa: Sequence[int]
) -> None:
    takes_and_gives_never_clash(seed, first=first, numa=numa)


@pytest.mark.parametrize("first", [0, 2 * SLAB])
@pytest.mark.parametrize("seed", range(2))
def test_a_slot_is_found_at_its_offset_and_nothing_elsewhere(seed: int, first: int) -> None:
    dice = random.Random(seed)
    slabs = Slabs(SLABS * SLAB, SLAB, first=first)
    used: list[Slot] = []
    for _ in range(100):
        owner = dice.choice(list(SIZES))
        slot = slabs.take(owner, SIZES[owner])
        if slot is not None:
            used.append(slot)
        else:
            slabs.give_all([used.pop(dice.randrange(len(used)))])
        heads = {one.offset: one for slab in slabs.occupied() for one in slab.slots.values()}
        assert {one.offset: one for one in used} == heads
        for offset in range(-SLAB, first + (SLABS + 2) * SLAB):
            assert slabs.at(offset) is heads.get(offset), f"offset {offset}"


def test_all_slots_of_an_owner_fit_and_then_there_is_none() -> None:
    for owner, size in SIZES.items():
        slabs = Slabs(SLABS * SLAB, SLAB)
        fit = SLABS * (SLAB // size)
        assert slabs.room(owner, size) == fit
        slots = [slabs.take(owner, size) for _ in range(fit)]
        assert all(slots) and slabs.take(owner, size) is None
        assert slabs.empty_slabs == 0 and slabs.room(owner, size) == 0
        slabs.check()


def places_of(slots: Sequence[Slot]) -> list[int]:
    return [slot.offset for slot in slots]


def test_one_call_takes_open_slabs_that_are_near_then_empty_ones_there_then_the_rest() -> None:
    owner, size = (b"b", 0), 50
    slabs = Slabs(SLABS * SLAB, SLAB, numa=ON_TWO)
    far, near = slabs.take_all(owner, size, 1, near=3), slabs.take_all(owner, size, 1, near=7)
    assert places_of([*far, *near]) == [0, 400]
    taken = slabs.take_all(owner, size, 10, near=7)
    assert places_of(taken) == [450, 500, 550, 50, 100, 150, 200, 250, 300, 350]
    assert slabs.take_all(owner, size, 1, near=7) == []
    slabs.give_all([*near, *taken[:3]])
    assert slabs.by_numa() == {3: (4, 0), 7: (2, 2)}
    assert places_of(slabs.take_all(owner, size, 1, near=3)) == [500], "there is none nearer"
    slabs.check()


def test_of_callers_that_are_nowhere_every_numa_node_gets_as_much() -> None:
    for near in (None, 9):
        slabs = Slabs(SLABS * SLAB, SLAB, numa=(0, 0, 0, 1, 1, 1))
        taken = [slabs.take_all((b"c", 0), SLAB, 1, near)[0] for _ in range(SLABS)]
        assert places_of(taken) == [0, 300, 100, 400, 200, 500]


def test_slabs_that_are_all_alike_are_taken_from_the_lowest_wherever_the_caller_is() -> None:
    for near in (None, 0, 1):
        slabs = Slabs(SLABS * SLAB, SLAB)
        assert places_of(slabs.take_all((b"b", 0), 50, 5, near)) == [0, 50, 100, 150, 200]
        assert slabs.by_numa() == {}


def test_a_near_slab_that_is_retired_gives_way_to_a_far_one() -> None:
    slabs = Slabs(SLABS * SLAB, SLAB, numa=ON_TWO)
    slabs.retire(4 * SLAB, 6 * SLAB)
    assert places_of(slabs.take_all((b"b", 0), 50, 1, near=7)) == [0]
    assert slabs.by_numa() == {3: (4, 3), 7: (2, 0)}
    slabs.check()


def test_a_slab_that_is_kept_for_another_numa_node_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Locality is no reason to have less."""
    found = Slabs._found

    def strict(self: Slabs, owner: Owner, size: int, near: int | None) -> Slab | None:
        slab = found(self, owner, size, near)
        return None if slab is not None and near in ON_TWO and slab.numa != near else slab

    monkeypatch.setattr(Slabs, "_found", strict)
    with TURNS_RED:
        takes_and_gives_never_clash(0, numa=ON_TWO)


def test_a_slab_changes_owner_once_its_last_slot_is_back() -> None:
    slabs = Slabs(SLAB, SLAB)
    one, two = slabs.take((b"b", 0), 50), slabs.take((b"b", 0), 50)
    assert one is not None and two is not None
    slabs.give_all([one])
    assert slabs.take((b"a", 0), 10) is None
    slabs.give_all([two])
    assert slabs.empty_slabs == 1 and slabs.occupied() == []
    other = slabs.take((b"a", 0), 10)
    assert other is not None and other.owner == (b"a", 0)
    assert other.generation > two.generation, "bytes changed owner under an old generation"


def test_a_slot_larger_than_a_slab_is_refused_with_the_fix() -> None:
    slabs = Slabs(SLABS * SLAB, SLAB)
    for call in (slabs.take, slabs.room):
        with pytest.raises(Invalid, match="start the node with a larger --slab"):
            call((b"a", 0), SLAB + 1)
    with pytest.raises(Invalid, match="holds no slab"):
        Slabs(SLAB - 1, SLAB)


def test_a_give_that_keeps_the_generation_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give = Slabs.give_all

    def stale(self: Slabs, slots: Sequence[Slot]) -> None:
        kept = [slot.generation for slot in slots]
        give(self, slots)
        for slot, generation in zip(slots, kept, strict=True):
            slot.generation = generation

    monkeypatch.setattr(Slabs, "give_all", stale)
    with TURNS_RED:
        takes_and_gives_never_clash(0)


def test_slots_cut_too_close_turn_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Slabs._cut
    monkeypatch.setattr(Slabs, "_cut", lambda s, slab, owner, size: cut(s, slab, owner, size - 1))
    with TURNS_RED:
        takes_and_gives_never_clash(0)


def test_a_slab_lost_on_the_way_back_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    give = Slabs.give_all

    def forgetful(self: Slabs, slots: Sequence[Slot]) -> None:
        give(self, slots)
        for empty in self._empty.values():
            del empty[SLABS - 1 :]

    monkeypatch.setattr(Slabs, "give_all", forgetful)
    with TURNS_RED:
        takes_and_gives_never_clash(0)


def restored(
    rows: list[tuple[int, int, int]],
    slabs: Slabs | None = None,
    vouched: Callable[[int], bool] = lambda row: True,
) -> tuple[Slabs, list[bool]]:
    """Slabs that take up (owner, place, generation) rows, and which of them they believe."""
    slabs = slabs or Slabs(SLABS * SLAB, SLAB, generation=1_000)
    owner, place, generation = (list(column) for column in zip(*rows, strict=True))
    good = slabs.restore(
        list(SIZES.items()),
        np.array(owner, np.int64),
        np.array(place, np.uint64),
        np.array(generation, np.uint64),
        vouched,
    )
    slabs.check()
    return slabs, good.tolist()


@pytest.mark.parametrize("numa", [(), ON_TWO])
def test_what_is_restored_is_in_use_and_all_else_is_free(numa: Sequence[int]) -> None:
    found = Slabs(SLABS * SLAB, SLAB, generation=1_000, numa=numa)
    slabs, good = restored([(0, 0, 5), (0, 30, 6), (1, 233, 7), (3, 500, 1)], found)
    assert all(good) and slabs.empty_slabs == 3
    assert slabs.room((b"a", 0), 10) == 8 + 3 * 10 and slabs.room((b"a", 1), 33) == 2 + 3 * 3
    slot = slabs.wake(30, 6)
    assert (slot.offset, slot.generation, slot.owner) == (30, 6, (b"a", 0))
    assert slabs.at(30) is slot and slabs.at(0) is None
    taken = {slabs.take((b"a", 0), 10) for _ in range(38)}
    assert None not in taken and slabs.take((b"a", 0), 10) is None
    offsets = {one.offset for one in taken if one is not None}
    assert len(offsets) == 38 and offsets.isdisjoint({0, 30})
    assert all(one.generation > 1_000 for one in taken if one is not None)
    slabs.check()


def test_records_of_places_that_cannot_be_are_passed_over() -> None:
    beyond, between = SLABS * SLAB, 95
    _, good = restored([(0, beyond, 9), (0, between, 9), (0, 2**63, 9), (1, 99, 9), (0, 10, 9)])
    assert good == [False, False, False, False, True]


def test_of_two_records_of_one_place_or_slab_the_later_is_believed() -> None:
    _, good = restored([(0, 0, 5), (0, 0, 7), (2, 100, 3), (2, 150, 4), (0, 110, 9)])
    assert good == [False, True, False, False, True]
    slabs, _ = restored([(0, 0, 2_000)])
    assert slabs.generation == 2_000, "a generation that was used comes again"


@pytest.mark.parametrize(
    ("vouched", "good"), [([0, 1, 3, 4], [1, 1, 0, 1, 1]), ([4], [0, 0, 1, 1, 1])]
)
def test_of_two_that_claim_a_slab_the_latest_that_is_vouched_is_believed_and_no_other_is_asked(
    vouched: list[int], good: list[int]
) -> None:
    asked: list[int] = []
    rows = [(0, 0, 5), (0, 10, 7), (2, 0, 9), (0, 110, 3), (0, 120, 8)]
    _, found = restored(rows, vouched=lambda row: asked.append(row) or row in vouched)
    assert found == [bool(one) for one in good], "where none is, the latest of all"
    assert asked == ([2, 1] if vouched[0] == 0 else [2, 1, 0])


def test_nothing_to_restore_leaves_everything_empty() -> None:
    slabs = Slabs(SLABS * SLAB, SLAB)
    none = np.zeros(0)
    assert not len(slabs.restore([], none.astype(np.int64), none, none))  # type: ignore[arg-type]
    assert slabs.empty_slabs == SLABS


def test_a_retired_slab_gives_out_no_slot_and_keeps_those_in_use_until_they_are_back() -> None:
    slabs = Slabs(3 * SLAB, SLAB)
    owner = (b"b", 0)
    one, two = slabs.take(owner, 50), slabs.take(owner, 50)
    assert one is not None and two is not None and (one.offset, two.offset) == (0, 50)
    slabs.give_all([two])
    slabs.retire(0, 2 * SLAB)  # one is cut and half used, one is empty
    slabs.check()
    assert slabs.retired(one) and slabs.at(0) is one
    assert slabs.room(owner, 50) == 2
    assert (slabs.usable_bytes, slabs.capacity_bytes) == (2 * SLAB, 3 * SLAB)
    left = [slabs.take(owner, 50), slabs.take(owner, 50)]
    assert [slot and slot.offset for slot in left] == [2 * SLAB, 2 * SLAB + 50]
    assert slabs.take(owner, 50) is None and slabs.take((b"a", 0), 10) is None
    generation = one.generation
    slabs.give_all([one])
    slabs.check()
    assert one.generation > generation, "who still reads it must see that it is gone"
    assert slabs.usable_bytes == SLAB
    assert slabs.take(owner, 50) is None and slabs.at(0) is None
    with pytest.raises(AssertionError, match="a part of a slab"):
        slabs.retire(0, SLAB + 1)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_retired_when_no_later_slot_is_there(seed: int) -> None:
    dice = random.Random(seed)
    slabs = Slabs(SLABS * SLAB, SLAB)
    used: list[Slot] = []
    retired: set[int] = set()
    for step in range(600):
        owner = dice.choice(list(SIZES))
        slot = slabs.take(owner, SIZES[owner]) if dice.random() < 0.6 else None
        if slot is not None:
            assert slot.offset // SLAB not in retired
            used.append(slot)
        elif used:
            slabs.give_all([used.pop(dice.randrange(len(used)))])
        if step % 150 == 100:
            number = dice.randrange(SLABS)
            slabs.retire(number * SLAB, (number + 1) * SLAB)
            retired.add(number)
        slabs.check()
    slabs.give_all(used[: len(used) // 2])
    for number in retired:
        slabs.resume(number * SLAB, (number + 1) * SLAB)
        slabs.check()
    assert slabs.usable_bytes == slabs.capacity_bytes
    slabs.give_all(used[len(used) // 2 :])
    assert slabs.empty_slabs == SLABS, "what is resumed is given out as before"


def test_a_retired_slab_that_is_found_again_turns_the_suite_red() -> None:
    slabs = Slabs(SLAB, SLAB)
    one, two = slabs.take((b"b", 0), 50), slabs.take((b"b", 0), 50)
    assert one is not None and two is not None
    slabs.retire(0, SLAB)
    slabs.give_all([one])
    slabs._open[two.owner, 0][0] = slabs.slab_of(one)
    with pytest.raises(AssertionError, match="free places that nobody finds"):
        slabs.check()
