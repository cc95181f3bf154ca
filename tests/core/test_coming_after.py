"""Blocks that stand alone and come after another: each is found by itself, and makes room first."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from kvstore.block import Miss
from kvstore.core import coming_after
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot
from tests.core.test_index import TURNS_RED, keys_of, sealed


def alone(key: bytes, after: bytes = b"") -> Slot:
    slot = sealed(key)
    slot.after = after
    return slot


def conversation(index: Index, *keys: bytes) -> None:
    for before, key in zip((b"", *keys), keys, strict=False):
        index.add(alone(key, before))
        index.check()


def test_the_end_goes_before_the_beginning_however_it_is_used() -> None:
    index = Index()
    conversation(index, b"a", b"b", b"c")
    index.add(alone(b"x"))
    index.touch([b"b", b"c"])  # as by servers that have `a` themselves
    assert keys_of(index.coldest()) == [b"x", b"c", b"b", b"a"]


def test_each_is_found_whatever_became_of_the_one_before_it() -> None:
    index = Index()
    conversation(index, b"a", b"b", b"c")
    index.drop(b"b", Miss.REMOVED)
    index.check()
    assert index.get(b"c") is not None and index.get(b"b") is None
    index.touch([b"a"])
    assert keys_of(index.coldest()) == [b"c", b"a"], "nothing is behind `a` any more"
    index.add(alone(b"b", b"a"))
    assert keys_of(index.coldest()) == [b"c", b"b", b"a"]


def test_what_comes_after_a_block_that_is_not_here_comes_after_nothing() -> None:
    index = Index()
    index.add(alone(b"b", b"a"))
    index.add(alone(b"a"))
    index.check()
    assert index.get(b"b") is not None and keys_of(index.coldest()) == [b"b", b"a"]
    index.touch([b"b"])
    assert keys_of(index.coldest()) == [b"a", b"b"]


def test_what_somebody_holds_keeps_all_that_it_comes_after() -> None:
    index = Index()
    conversation(index, b"a", b"b", b"c")
    held = index.get(b"b")
    assert held is not None
    held.pins = 1
    assert keys_of(index.coldest()) == [b"c"]


def test_another_slot_that_stands_for_a_block_comes_after_the_same() -> None:
    index = Index()
    conversation(index, b"a", b"b", b"c")
    index.replace(alone(b"b"))
    index.check()
    assert keys_of(index.coldest()) == [b"c", b"b", b"a"]


def test_nothing_comes_after_a_block_of_a_chain_which_may_be_hidden_or_wait_for_it() -> None:
    index = Index()
    index.add(sealed(b"q", b"p"))
    index.add(alone(b"a", b"q"))
    index.add(alone(b"p", b"q"))
    index.check()
    assert {slot.key: slot.after for slot in index} == dict.fromkeys([b"q", b"a", b"p"], b"")
    assert keys_of(index.coldest()) == [b"a", b"q", b"p"]


def test_blocks_of_chains_behind_one_that_goes_still_wait_for_it() -> None:
    index = Index()
    index.add(sealed(b"p"))
    index.add(sealed(b"q", b"p"))
    index.add(alone(b"a", b"p"))
    index.drop(b"p", Miss.REMOVED)
    index.check()
    assert index.get(b"q") is None and index.get(b"a") is not None
    index.add(sealed(b"p"))
    index.check()
    assert index.get(b"q") is not None


def a_forest_is_closed_towards_the_end(seed: int, steps: int = 600) -> None:
    """Random adds, drops, touches, pins and copies: nothing is hidden, and of what goes each is the
    last that comes after it."""
    dice, index = random.Random(seed), Index()
    names = [f"k{i:02}".encode() for i in range(24)]
    links: dict[bytes, bytes] = {}  # of those held: what each comes after
    for _ in range(steps):
        action, key = dice.random(), dice.choice(names)
        if key not in links and action < 0.5:
            after = dice.choice([b"", *(one for one in names if one != key)])
            index.add(alone(key, after))
            links[key] = after if after in links else b""
        elif key in links and action < 0.6:
            index.drop(key, dice.choice([Miss.EVICTED, Miss.REMOVED]))
            links = {one: b"" if to == key else to for one, to in links.items() if one != key}
        elif key in links and action < 0.7:
            index.replace(alone(key))
        elif action < 0.85:
            index.touch(dice.sample(names, 4))
        else:
            going = list(islice(index.coldest(), dice.randint(1, 6)))
            for slot in going:
                assert slot.key not in links.values(), "something comes after it"
                index.drop(slot.key, Miss.EVICTED)
                del links[slot.key]
        index.check()
        assert {slot.key: slot.after for slot in index} == links
        assert all(index.get(one) is not None for one in links)
    assert len(list(index.coldest())) == len(links), "all of it can go"


@pytest.mark.parametrize("seed", range(8))
def test_a_forest_of_them_is_closed_towards_the_end(seed: int) -> None:
    a_forest_is_closed_towards_the_end(seed)


def test_a_block_that_goes_and_is_still_come_after_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.core.index.waiting_for", lambda slot, _: set(slot.children))
    with TURNS_RED:
        a_forest_is_closed_towards_the_end(0)


def test_a_block_that_does_not_know_what_comes_after_it_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgets(slot: Slot, before: Slot | None) -> None:
        coming_after.follow(slot, before)
        if before is not None:
            before.loses(slot.key)

    monkeypatch.setattr("kvstore.core.index.follow", forgets)
    with TURNS_RED:
        a_forest_is_closed_towards_the_end(0)
