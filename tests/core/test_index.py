"""What is listed is closed towards the start of a prompt, and eviction takes leaves."""

from __future__ import annotations

import random

import pytest

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State
from kvstore.core.ranking import Ranking, Seen

OWNERS = [(b"a", 0), (b"b", 0)]
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception, KeyError, RuntimeError))


def sealed(key: bytes, parent: bytes = b"", owner: int = 0) -> Slot:
    slot = Slot(0, 0, OWNERS[owner], State.SEALED, key=key, parent=parent)
    slot.root = b"r" * 16
    return slot


def keys_of(slots: object) -> list[bytes]:
    return [slot.key for slot in slots]  # type: ignore[attr-defined]


def chain_in(index: Index, name: str, count: int) -> list[bytes]:
    keys = [f"{name}{i}".encode() for i in range(count)]
    for i, key in enumerate(keys):
        index.add(sealed(key, keys[i - 1] if i else b""))
    return keys


def naively_coldest(index: Index, owner: object, spared: set[bytes]) -> list[bytes]:
    """Look for the first to go, let it go, look again from the start."""
    unlisted, recency = list(index._unlisted), list(index._ranking.recency)
    slots = {slot.key: slot for slot in index}
    children = {key: set(slot.children) for key, slot in slots.items()}
    found: list[bytes] = []

    def goes(key: bytes) -> bool:
        slot = slots[key]
        ours = owner is None or slot.owner == owner
        return ours and not slot.pins and not slot.windows and key not in spared

    while True:
        key = next((k for k in unlisted if goes(k)), None)
        key = key or next((k for k in recency if goes(k) and not children[k]), None)
        if key is None:
            return found
        found.append(key)
        (unlisted if key in unlisted else recency).remove(key)
        if slots[key].parent in children:
            children[slots[key].parent].discard(key)


def a_forest_behaves_like_its_model(seed: int, steps: int = 700) -> None:
    """Random adds, drops, touches and pins on a fixed forest, beside a dict of parents."""
    dice = random.Random(seed)
    names = [f"k{i:02}".encode() for i in range(26)]
    parents = {k: dice.choice([b"", *names[max(0, i - 4) : i]]) for i, k in enumerate(names)}
    index, held, gone = Index(), {}, {}  # type: ignore[var-annotated]

    def path(key: bytes) -> list[bytes]:
        keys = [key]
        while parents[keys[0]]:
            keys.insert(0, parents[keys[0]])
        return keys

    def listed(key: bytes) -> bool:
        return all(k in held for k in path(key))

    for _ in range(steps):
        action, key = dice.random(), dice.choice(names)
        if action < 0.45 and key not in held:
            held[key] = sealed(key, parents[key], owner=dice.random() < 0.2)
            index.add(held[key])
            gone.pop(key, None)
        elif action < 0.65 and held:
            key = dice.choice(sorted(held))
            why = dice.choice([Miss.EVICTED, Miss.DAMAGED, Miss.REMOVED])
            slot = held.pop(key)
            assert index.drop(key, why) is slot and not slot.listed and not slot.children
            gone[key] = why
        elif action < 0.8:
            prefix = path(key)
            index.touch(prefix)
            moved = [k for k in reversed(prefix) if k in held and listed(k)]
            assert list(index._ranking.recency)[len(index._ranking.recency) - len(moved) :] == moved
        elif held:
            slot = held[dice.choice(sorted(held))]
            slot.pins = 0 if slot.pins else 1
        index.check()

        assert keys_of(index) == list(held) and len(index) == len(held)
        for key in names:
            assert (key in index) == (key in held) and index.held(key) is held.get(key)
            if key in held and listed(key):
                assert index.get(key) is held[key]
            else:
                assert index.get(key) is None
                absent = gone.get(key, Miss.ABSENT)
                assert index.why_not(key) is (Miss.UNLISTED if key in held else absent)
            flags = [index.get(k) is not None for k in path(key)]
            assert index.longest(path(key)) == [*flags, False].index(False)
        recent = list(index.recent())
        assert sorted(recent) == sorted(held) and index.unlisted == len(index._unlisted)
        assert [listed(k) for k in recent] == sorted((listed(k) for k in recent), reverse=True)
        assert sum(index.owners().values()) == len(held)

        owner = dice.choice([None, *OWNERS])
        spared = set(dice.sample(names, dice.choice([0, 0, 3])))
        order = keys_of(index.coldest(owner, None, spared))
        assert order == naively_coldest(index, owner, spared)
        left = set(held)
        for key in order:
            assert not held[key].held and key not in spared
            if held[key].listed:
                assert all(parents[k] != key for k in left), "a block went before those behind it"
            left.discard(key)


@pytest.mark.parametrize("seed", range(5))
def test_an_index_behaves_like_a_dict_of_parents(seed: int) -> None:
    a_forest_behaves_like_its_model(seed)


def test_a_block_behind_a_hole_is_no_hit_until_the_hole_heals() -> None:
    index = Index()
    keys = chain_in(index, "a", 5)
    hole = index.drop(keys[1], Miss.DAMAGED)
    assert index.longest(keys) == 1
    assert [index.why_not(k) for k in keys[1:]] == [Miss.DAMAGED, *[Miss.UNLISTED] * 3]
    assert index.unlisted == 3 and index.held(keys[4]) is not None
    index.check()
    index.add(hole)
    assert index.longest(keys) == 5 and index.unlisted == 0
    index.check()


def test_blocks_may_come_in_any_order_and_are_listed_once_all_before_them_are_there() -> None:
    index = Index()
    keys = [bytes([i]) for i in range(6)]
    for i in (5, 3, 4, 1, 2):
        index.add(sealed(keys[i], keys[i - 1]))
        assert index.longest(keys) == 0 and index.unlisted == len(index)
        index.check()
    index.add(sealed(keys[0]))
    assert index.longest(keys) == 6


def test_a_hole_that_is_never_healed_leaves_nothing_behind() -> None:
    index = Index()
    keys = chain_in(index, "a", 4)
    for key in keys:
        index.drop(key, Miss.EVICTED)
        index.check()
    assert (
        len(index) == 0
        and not index._orphans
        and not index._unlisted
        and not index._ranking.recency
    )


def test_a_block_that_names_itself_as_its_parent_is_never_listed() -> None:
    index = Index()
    index.add(sealed(b"x", b"x"))
    assert index.get(b"x") is None and keys_of(index.coldest()) == [b"x"]
    index.check()
    index.drop(b"x", Miss.EVICTED)
    index.check()
    assert not index._orphans


def test_eviction_takes_unlisted_blocks_first_then_leaves_by_age() -> None:
    index = Index()
    old, young, torn = (chain_in(index, name, 3) for name in ("old", "young", "torn"))
    index.drop(torn[0], Miss.DAMAGED)
    order = keys_of(index.coldest())
    assert set(order[:2]) == set(torn[1:])
    assert order[2:] == [*reversed(old), *reversed(young)]


def test_a_touched_prefix_outlives_an_untouched_one() -> None:
    index = Index()
    first, second = chain_in(index, "first", 3), chain_in(index, "second", 3)
    assert keys_of(index.coldest())[:3] == first[::-1]
    index.touch(first)
    assert keys_of(index.coldest()) == [*second[::-1], *first[::-1]]
    index.touch([b"never heard of", *second[:1]])
    assert keys_of(index.coldest())[:2] == second[:0:-1], "only the touched part got younger"


def test_nothing_before_a_held_block_is_evicted() -> None:
    index = Index()
    keys = chain_in(index, "a", 5)
    held = index.get(keys[2])
    assert held is not None
    held.pins = 1
    assert keys_of(index.coldest()) == [keys[4], keys[3]]
    assert keys_of(index.coldest(spared={keys[3]})) == [keys[4]]
    held.pins = 0
    assert keys_of(index.coldest()) == keys[::-1]


def test_another_owner_is_not_asked_to_make_room() -> None:
    index = Index()
    index.add(sealed(b"mine"))
    index.add(sealed(b"theirs", owner=1))
    index.add(sealed(b"theirs behind mine", b"mine", owner=1))
    assert keys_of(index.coldest(OWNERS[0])) == []
    assert keys_of(index.coldest(OWNERS[1])) == [b"theirs", b"theirs behind mine"]


def test_another_slot_stands_for_a_block_in_its_place() -> None:
    index = Index()
    keys = chain_in(index, "a", 3)
    chain_in(index, "b", 2)
    order = keys_of(index.coldest())
    recent = list(index.recent())
    for key in keys:
        old = index.get(key)
        assert old is not None
        copy = sealed(key, old.parent)
        assert index.replace(copy) is old
        index.check()
        assert index.get(key) is copy and not old.listed and not old.children
    assert keys_of(index.coldest()) == order and list(index.recent()) == recent
    assert index.longest(keys) == 3
    index.drop(keys[0], Miss.DAMAGED)
    copy = sealed(keys[2], keys[1])
    assert index.replace(copy) is not copy and index.held(keys[2]) is copy and not copy.listed
    index.add(sealed(keys[0]))
    assert index.longest(keys) == 3 and index.get(keys[2]) is copy
    index.check()


def test_a_slot_of_another_block_cannot_stand_for_one() -> None:
    index = Index()
    keys = chain_in(index, "a", 2)
    with pytest.raises(AssertionError, match="not a copy"):
        index.replace(sealed(keys[1], b"another parent"))
    with pytest.raises(AssertionError, match="not a copy"):
        index.replace(sealed(keys[1], keys[0], owner=1))
    with pytest.raises(KeyError):
        index.replace(sealed(b"never heard of"))


def test_choosing_leaves_the_index_as_it_is_wherever_the_caller_stops() -> None:
    index = Index()
    chain_in(index, "a", 4), chain_in(index, "b", 3)
    whole = keys_of(index.coldest())
    for count in range(8):
        choices = index.coldest()
        assert keys_of(next(choices) for _ in range(min(count, 7))) == whole[:count]
        index.check()
        assert keys_of(index.coldest()) == whole


def test_the_end_of_a_long_prefix_is_found_in_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    keys = chain_in(index, "a", 1_000)
    looks: list[bytes] = []
    get = Index.get

    def counted(self: Index, key: bytes) -> Slot | None:
        looks.append(key)
        return get(self, key)

    monkeypatch.setattr(Index, "get", counted)
    for cut in (0, 1, 500, 999, 1_000):
        looks.clear()
        assert index.longest(keys[:cut] + [b"unknown"] * 1_000) == cut
        assert len(looks) <= 12


def test_a_drop_that_leaves_what_is_behind_listed_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop = Index.drop

    def careless(self: Index, key: bytes, why: Miss) -> Slot:
        self._slots[key].listed = False
        return drop(self, key, why)

    monkeypatch.setattr(Index, "drop", careless)
    with TURNS_RED:
        a_forest_behaves_like_its_model(0)


def test_an_eviction_of_any_old_block_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_age(
        self: Index, owner: object = None, tenant: object = None, spared: object = ()
    ) -> list[Slot]:
        return [
            slot for slot in map(self._slots.__getitem__, self._ranking.recency) if not slot.held
        ]

    monkeypatch.setattr(Index, "coldest", by_age)
    with TURNS_RED:
        a_forest_behaves_like_its_model(0)


def state_of(index: Index) -> object:
    """All that can be told from outside, and what the ranking has seen."""
    seen = [(one.at, one.uses, one.kind) for one in index._ranking.recency.values()]
    slots = {slot.key: (slot.listed, sorted(slot.children)) for slot in index}
    told = sorted(index.listing.items())
    order = keys_of(index.coldest())
    return list(index.recent()), seen, slots, told, index.listing.sequence, order


def blocks_added_together_are_as_those_added_one_by_one(seed: int) -> None:
    """And touched then, the deepest first. With holes, with what a hole had cut off, twice gone."""
    dice = random.Random(seed)
    names = [f"block{i:03}".encode() for i in range(120)]
    parents = {k: dice.choice([b"", *names[max(0, i - 3) : i]]) for i, k in enumerate(names)}
    together, singly = Index(), Index()
    for _ in range(60):
        fresh = [key for key in names if key not in singly and dice.random() < 0.3]
        together.add_all([sealed(key, parents[key]) for key in fresh])
        for key in fresh:
            singly.add(sealed(key, parents[key]))
        singly.touch(fresh)
        if len(fresh) == 1:
            together.touch(fresh)
        together.check()
        assert state_of(together) == state_of(singly)
        for key in dice.sample(sorted(slot.key for slot in singly), len(singly) // 4):
            why = dice.choice([Miss.EVICTED, Miss.REMOVED])
            together.drop(key, why)
            singly.drop(key, why)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_added_together_are_as_those_added_one_by_one(seed: int) -> None:
    blocks_added_together_are_as_those_added_one_by_one(seed)


def test_a_batch_that_is_touched_from_the_front_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def from_the_front(self: Ranking, slots: list[Slot], before: list[Seen | None]) -> None:
        enter(self, slots[::-1], before[::-1])

    enter = Ranking.enter
    monkeypatch.setattr(Ranking, "enter", from_the_front)
    with TURNS_RED:
        a_batch_puts_the_first_of_a_prompt_last()


def a_batch_puts_the_first_of_a_prompt_last() -> None:
    index, keys = Index(), [b"block 01", b"block 02", b"block 03"]
    index.add_all([sealed(key, keys[i - 1] if i else b"") for i, key in enumerate(keys)])
    assert list(index.recent()) == keys and keys_of(index.coldest()) == keys[::-1]


def test_a_batch_puts_the_first_of_a_prompt_last() -> None:
    a_batch_puts_the_first_of_a_prompt_last()


def test_a_heal_that_lists_only_the_hole_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only(self: Index, slot: Slot, before: Seen | None) -> None:
        slot.listed = True
        self._ranking.enter([slot], [before])

    monkeypatch.setattr(Index, "_list", only)
    with TURNS_RED:
        a_forest_behaves_like_its_model(0)


def test_a_touch_from_the_front_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    touch = Index.touch
    monkeypatch.setattr(Index, "touch", lambda self, keys: touch(self, keys[::-1]))
    with TURNS_RED:
        a_forest_behaves_like_its_model(0)
