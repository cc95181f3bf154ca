"""What an earlier run left behaves as if it were awake, whoever asks and in whatever order."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.slabs import Slabs
from kvstore.core.sleepers import KEY, ROW, Sleepers, first_words, firsts, parents

OWNERS = [(b"a", 0), (b"b", 0)]
SIZES = [10, 33]
SLAB = 100
TURNS_RED = pytest.raises((AssertionError, KeyError, pytest.fail.Exception))


def name(number: int) -> bytes:
    """Keys of which many begin with the same word, and some end in zeros."""
    key = hashlib.blake2b(b"%d" % number, digest_size=KEY).digest()
    key = b"same bit" + key[8:] if number % 5 == 0 else key
    return key[:-2] + b"\0\0" if number % 7 == 0 else key


def table_of(held: list[int], before: dict[int, int | None], dice: random.Random) -> np.ndarray:
    table = np.zeros(len(held), ROW)
    per_slab = [SLAB // size for size in SIZES]
    count = [0, 0]
    for row, number in enumerate(held):
        owner, parent = number % 2, before[number]
        slab, place = divmod(count[owner], per_slab[owner])
        count[owner] += 1
        table[row]["key"] = name(number)
        table[row]["parent"] = b"" if parent is None else name(parent)
        table[row]["root"] = b"r" * 16
        table[row]["place"] = (2 * slab + owner) * SLAB + place * SIZES[owner]
        table[row]["generation"] = dice.randrange(1, 1 << 40)
        table[row]["owner"], table[row]["tokens"] = owner, 4
    return table[np.argsort(first_words(table["key"]), kind="stable")]


def asleep(table: np.ndarray) -> Index:
    slabs = Slabs(200 * SLAB, SLAB, Tier.SSD)
    owners = list(zip(OWNERS, SIZES, strict=True))
    places = (table["owner"].astype(np.int64), table["place"], table["generation"])
    assert slabs.restore(owners, *places).all()
    slabs.check()
    index = Index()
    index.recovered(Sleepers(table, owners, ["default"], slabs))
    return index


def a_forest_asleep_behaves_like_its_model(seed: int, steps: int = 300) -> None:
    dice = random.Random(seed)
    count = 40
    before = {i: dice.choice([None, *range(max(0, i - 4), i)]) for i in range(count)}
    held = {i for i in range(count) if dice.random() < 0.8}
    index = asleep(table_of(sorted(held), before, dice))

    def path(number: int | None) -> list[int]:
        return [] if number is None else [*path(before[number]), number]

    def listed(number: int) -> bool:
        return held.issuperset(path(number))

    for _ in range(steps):
        action, number = dice.random(), dice.randrange(count)
        keys = [name(one) for one in path(number)]
        if action < 0.2 and number not in held:
            parent = before[number]
            slot = Slot(0, 0, OWNERS[number % 2], State.SEALED, key=name(number), root=b"r" * 16)
            slot.parent = b"" if parent is None else name(parent)
            index.add(slot)
            held.add(number)
        elif action < 0.35 and number in held:
            index.drop(index.held(name(number)).key, Miss.REMOVED)
            held.discard(number)
        elif action < 0.5:
            slot = index.held(name(number))
            assert (slot is not None) == (number in held)
            if slot is not None:
                assert (slot.key, slot.listed) == (name(number), listed(number))
                assert slot.owner == OWNERS[number % 2]
        elif action < 0.6:
            index.touch(keys)
        elif action < 0.7:
            before_that = len(index.sleepers)
            roused = index.rouse(dice.choice(OWNERS), "default", dice.randrange(1, 3))
            assert len(index.sleepers) <= before_that - len(roused)
        elif action < 0.75:
            begin = SLAB * dice.randrange(8)
            index.rouse_places(begin, begin + SLAB)
        index.check()
        flags = [listed(one) and one in held for one in path(number)]
        assert index.longest(keys) == [*flags, False].index(False)
        assert (name(number) in index) == (number in held) and len(index) == len(held)
        assert index.unlisted == sum(not listed(one) for one in held)
        assert sum(index.owners().values()) == len(held)
    while index.sleepers:
        assert any(index.rouse(owner, "default", 100) for owner in OWNERS), "one that nothing wakes"
    index.check()
    assert {slot.key for slot in index} == set(map(name, held))


@pytest.mark.parametrize("seed", range(12))
def test_a_forest_that_sleeps_behaves_like_one_that_is_awake(seed: int) -> None:
    a_forest_asleep_behaves_like_its_model(seed)


def test_what_was_not_used_since_the_start_goes_before_what_was() -> None:
    dice, before = random.Random(1), {0: None, 1: 0, 2: 1, 3: None, 4: 3, 5: None}
    index = asleep(table_of(list(before), before, dice))
    index.touch([name(3), name(4)])
    for owner in OWNERS:
        index.rouse(owner, "default", 9)
    order = [slot.key for slot in index.coldest()]
    assert set(order[-2:]) == {name(3), name(4)} and order.index(name(2)) < order.index(name(1))
    assert [index.unused(index.held(name(i))) for i in range(6)] == [True] * 3 + [False] * 2 + [
        True
    ]


def test_the_longest_written_leaf_is_roused_first_and_all_before_it_with_it() -> None:
    before = {0: None, 2: 0, 4: 2, 6: None, 8: 6}
    table = table_of(list(before), before, random.Random(2))
    index = asleep(table)
    leaves = {row: table["generation"][row] for row in range(5)}
    of = {bytes(table["key"][row]).ljust(KEY, b"\0"): row for row in range(5)}
    first = min((4, 8), key=lambda number: leaves[of[name(number)]])
    assert len(index.rouse(OWNERS[0], "default", 1)) == 1
    line = {4: [0, 2, 4], 8: [6, 8]}[first]
    assert sorted(slot.key for slot in index) == sorted(map(name, line))


def test_places_are_roused_whoever_is_there() -> None:
    before = dict.fromkeys(range(0, 40, 2))
    table = table_of(list(before), before, random.Random(3))
    index = asleep(table)
    index.rouse_places(2 * SLAB, 3 * SLAB)
    there = [slot.offset for slot in index]
    assert sorted(there) == [2 * SLAB + 10 * i for i in range(10)]


def test_a_prompt_in_these_places_is_roused_once_whichever_of_its_blocks_comes_first() -> None:
    numbers = range(0, 20, 2)  # of whose keys the order is another
    before = dict(zip(numbers, [None, *numbers], strict=False))
    index = asleep(table_of(list(before), before, random.Random(4)))
    index.rouse_places(0, SLAB)
    index.check()
    assert {slot.key for slot in index} == set(map(name, numbers))


def test_a_look_at_all_of_them_wakes_nobody_and_shows_each_as_it_will_be() -> None:
    before = {0: None, 1: 0, 2: 1, 3: None, 7: 3, 14: 7, 6: 5}  # 6 is behind a hole
    index = asleep(table_of(list(before), before, random.Random(5)))
    assert sorted(index.keys(lambda owner, tenant: True)) == sorted(map(name, before))
    looks = {number: index.peek(name(number)) for number in before}
    assert len(index.sleepers) == len(before)
    for number, look in looks.items():
        slot = index.held(name(number))
        words = ("key", "parent", "owner", "offset", "generation", "root", "tokens", "tenant")
        for word in (*words, "listed"):
            assert getattr(look, word) == getattr(slot, word)
        assert look.listed == (number != 6)
        assert index.peek(name(number)) is slot and slot.unproven
    index.check()


def test_what_was_proven_asleep_is_proven_when_it_wakes() -> None:
    before = dict.fromkeys(range(3))
    index = asleep(table_of(list(before), before, random.Random(6)))
    index.prove(index.peek(name(1)))
    assert [index.held(name(number)).unproven for number in before] == [True, False, True]


def test_keys_are_of_those_asleep_that_are_asked_for_and_of_all_awake() -> None:
    before = dict.fromkeys(range(6))
    index = asleep(table_of(list(before), before, random.Random(7)))
    index.held(name(1))
    keys = index.keys(lambda owner, tenant: (owner, tenant) == (OWNERS[0], "default"))
    index.held(name(3))  # too late to be among them
    assert sorted(keys) == sorted(map(name, (0, 1, 2, 4)))
    assert list(index.keys(lambda owner, tenant: tenant == "other")) == [name(1), name(3)]


def test_records_that_stand_in_a_circle_are_told_from_those_that_do_not() -> None:
    before = {0: 2, 2: 4, 4: 0, 6: None, 8: 6, 10: 4, 12: 12}
    table = table_of(list(before), before, random.Random(4))
    parent = parents(table)
    circular = parent[firsts(parent)] >= 0
    lies = {bytes(key).ljust(KEY, b"\0") for key in table["key"][circular]}
    assert lies == {name(number) for number in (0, 2, 4, 10, 12)}


def test_an_unlisted_sleeper_that_counts_as_a_hit_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = np.zeros(0, np.uint64)
    monkeypatch.setattr(Sleepers, "list_behind", lambda self, keys, listed: nobody)
    with TURNS_RED:
        for seed in range(12):
            a_forest_asleep_behaves_like_its_model(seed)


def test_a_parent_that_forgets_who_sleeps_behind_it_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wake = Sleepers.wake

    def lonely(self: Sleepers, row: int) -> Slot:
        slot = wake(self, row)
        slot.sleeping = 0
        return slot

    monkeypatch.setattr(Sleepers, "wake", lonely)
    with TURNS_RED:
        a_forest_asleep_behaves_like_its_model(0)
