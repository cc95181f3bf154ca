"""The index of the pool behaves like a dict of dicts, whatever comes in which order, and says of
itself when it does not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.conductor import index as index_module
from kvstore.conductor.index import PoolIndex
from kvstore.errors import Overloaded
from kvstore.kernels import pool_index as loops
from kvstore.kernels import pool_word as word

FACTOR = 0x9E3779B97F4A7C15


def put(index: PoolIndex, holder: int, blocks: dict[int, int]) -> None:
    prints = np.array(list(blocks), np.uint64)
    index.put_all(holder, prints, np.array(list(blocks.values()), np.uint8))


def swept(index: PoolIndex) -> None:
    while index.sweep():
        index.check()


def answer(index: PoolIndex, chain: list[int]) -> dict[int, int]:
    holders, lengths = index.longest(np.array(chain, np.uint64))
    return dict(zip(holders.tolist(), lengths.tolist(), strict=True))


class Model:
    """What the index is to be like."""

    def __init__(self, seed: int, chains: int, length: int) -> None:
        self.dice = random.Random(seed)
        self.chains = [[self.dice.randrange(1 << 64) for _ in range(length)] for _ in range(chains)]
        self.blocks: dict[int, dict[int, int]] = {}  # by holder
        self.shown: set[int] = set()

    def closed(self) -> dict[int, int]:
        """What a holder may list: of each chain some leading blocks."""
        some = [one for c in self.chains for one in c[: self.dice.randrange(len(c) + 1)]]
        return {one: self.dice.randrange(1, 8) for one in some}

    def leading(self, chain: list[int]) -> dict[int, int]:
        found = {
            holder: next((i for i, one in enumerate(chain) if one not in blocks), len(chain))
            for holder, blocks in self.blocks.items()
            if holder in self.shown
        }
        return {holder: length for holder, length in found.items() if length}


@pytest.mark.parametrize("seed", range(8))
def test_the_index_behaves_like_a_dict_of_dicts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SWEPT_PLACES", 700)  # a pass is of many pieces
    monkeypatch.setattr(index_module, "_SETS_MIN", 16)  # and sets are collected now and then
    model, index = Model(seed, chains=12, length=20), PoolIndex(FACTOR)
    index._collect_at = 16
    dice = model.dice
    for _ in range(250):
        action = dice.random()
        holder = dice.choice(list(model.blocks)) if model.blocks else None
        if holder is None or (action < 0.15 and len(model.blocks) < 9):
            made = index.add()
            assert made not in model.blocks, "a number is given out twice"
            model.blocks[made] = {}
        elif action < 0.25:
            index.drop(holder)
            del model.blocks[holder]
            model.shown.discard(holder)
        elif action < 0.4:
            index.show(holder)
            model.shown.add(holder)
        elif action < 0.5:
            index.sweep()
        else:
            now, before = model.closed(), model.blocks[holder]
            put(index, holder, {one: now.get(one, 0) for one in {*now, *before}})
            model.blocks[holder] = now
        index.check()
        for chain in dice.sample(model.chains, 3):
            cut = chain[: dice.randrange(len(chain) + 1)]
            assert answer(index, cut) == model.leading(cut)
            for one, blocks in model.blocks.items():
                tiers = index.tiers(one, np.array(chain, np.uint64)).tolist()
                assert tiers == [blocks.get(each, 0) for each in chain]
        for one, blocks in model.blocks.items():
            assert index.count(one) == len(blocks)
    assert index._set_count, "no block had so many holders that they were a set"
    for holder in model.blocks:
        index.drop(holder)
    swept(index)
    assert len(index) == 0


def test_the_index_grows_and_every_block_is_found_again() -> None:
    index, dice = PoolIndex(FACTOR), np.random.default_rng(1)
    prints = dice.integers(0, 1 << 64, 300_000, np.uint64)
    holders = [index.add() for _ in range(3)]
    for holder in holders:
        index.show(holder)
    tiers = dice.integers(1, 8, len(prints)).astype(np.uint8)
    index.put_all(holders[0], prints, tiers)
    index.put_all(holders[2], prints[::3], tiers[::3])
    index.check()
    assert len(index) == len(prints) and index.sets == 0, "three holders stand in a place"
    assert (index.tiers(holders[0], prints) == tiers).all()
    assert (index.tiers(holders[2], prints[::3]) == tiers[::3]).all()
    assert not index.tiers(holders[1], prints).any()
    assert index.nbytes / len(prints) < 24 + 2 * 24 * index_module._TURNS / len(prints)


def test_prints_that_all_fall_in_one_place_find_room() -> None:
    index = PoolIndex(1)  # as if the secret factor were known
    holder = index.add()
    index.show(holder)
    prints = np.arange(20_000, dtype=np.uint64)
    index.put_all(holder, prints, np.ones(len(prints), np.uint8))
    index.check()
    assert answer(index, prints.tolist()) == {holder: len(prints)}
    index.put_all(holder, prints[::2], np.zeros(len(prints) // 2, np.uint8))
    index.check()
    assert len(index) == len(prints) // 2


def test_a_hidden_holder_is_in_no_answer_and_a_dropped_one_at_once_in_none() -> None:
    index = PoolIndex(FACTOR)
    one, other = index.add(), index.add()
    put(index, one, {1: 1, 2: 1})
    put(index, other, {1: 2, 2: 3, 3: 1})
    assert answer(index, [1, 2, 3]) == {}
    index.show(other)
    assert answer(index, [1, 2, 3]) == {other: 3}
    index.show(one)
    assert answer(index, [1, 2, 3]) == {one: 2, other: 3}
    index.drop(other)
    assert answer(index, [1, 2, 3]) == {one: 2}
    assert index.count(other) == 3, "its blocks are swept out later"
    swept(index)
    assert len(index) == 2 and index.tiers(one, np.array([1, 2, 3], np.uint64)).tolist() == [
        1,
        1,
        0,
    ]


def test_a_number_is_given_out_again_only_when_nothing_of_it_is_left() -> None:
    index = PoolIndex(FACTOR)
    index._free_holders = [5, 4]
    first, second = index.add(), index.add()
    put(index, first, {1: 1})
    index.drop(first)
    with pytest.raises(Overloaded, match="holders"):
        index.add()
    swept(index)
    assert index.add() == first
    index.drop(second)  # it has nothing
    assert index.add() == second


def test_an_index_that_is_full_takes_what_makes_it_no_fuller() -> None:
    index, dice = PoolIndex(FACTOR, blocks_max=3_000), random.Random(5)
    holder, other = index.add(), index.add()
    blocks = [dice.randrange(1 << 64) for _ in range(4_000)]
    with pytest.raises(Overloaded, match="all that it may have"):
        put(index, holder, dict.fromkeys(blocks, 1))
    index.check()
    there = [one for one in blocks if index.tiers(holder, np.array([one], np.uint64))[0]]
    put(index, holder, {there[0]: 3})  # it is in one more tier
    put(index, other, {there[1]: 1})  # another has it too
    put(index, holder, {there[2]: 0})  # it is gone
    with pytest.raises(Overloaded, match="all that it may have"):
        put(index, other, {1: 1, 2: 1})
    index.check()


def test_blocks_that_move_while_a_sweep_is_under_way_are_swept_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "SWEPT_PLACES", 64)
    dice = random.Random(3)
    index = PoolIndex(FACTOR)
    gone, stays = index.add(), index.add()
    # As many as there is room for: runs are long, and whatever comes or goes moves others.
    mine = {dice.randrange(1 << 64): 1 for _ in range(1_600)}
    others = {dice.randrange(1 << 64): 1 for _ in range(1_700)}
    put(index, gone, mine)
    put(index, stays, others)
    index.drop(gone)
    while index.sweep():
        some = dict(dice.sample(sorted(others.items()), 100))
        put(index, stays, {one: dice.randrange(2) for one in some})
        index.check()
    assert index.count(gone) == 0 and len(index) == index.count(stays)


@pytest.mark.parametrize("word", range(loops.WORDS))
def test_the_check_sees_a_word_that_was_changed(word: int) -> None:
    index = PoolIndex(FACTOR)
    holder = index.add()
    put(index, holder, {one * FACTOR % (1 << 64): 1 for one in range(1, 200)})
    index.check()
    places = np.flatnonzero(index._words.reshape(-1, loops.WORDS)[:, 1])
    index._words[loops.WORDS * places[77] + word] ^= np.uint64(0xF0F0F0F0F0F0F0F0)
    with pytest.raises((AssertionError, IndexError, OverflowError)):
        index.check()


@pytest.mark.parametrize("seed", range(4))
def test_of_what_a_holder_has_the_blocks_in_dram_come_first_and_are_counted(seed: int) -> None:
    dice, index, wanted = random.Random(seed), PoolIndex(FACTOR), dict[int, tuple[int, int]]()
    chain = [dice.randrange(1 << 64) for _ in range(50)]
    for _ in range(20):
        holder, length = index.add(), dice.randrange(1, 51)
        in_dram = dice.choice([0, length, dice.randrange(length + 1)])
        tiers = [dice.choice([1, 3])] * in_dram + [2] * (length - in_dram)
        put(index, holder, dict(zip(chain, tiers, strict=False)))
        index.show(holder)
        wanted[holder] = (length, in_dram)
    holders, lengths, found = index.longest_in_dram(np.array(chain, np.uint64))
    said = zip(lengths.tolist(), found.tolist(), strict=True)
    assert dict(zip(holders.tolist(), said, strict=True)) == wanted


def test_only_of_those_with_the_most_it_is_looked_at_what_is_in_dram(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "_LOOKED_AT", 2)
    index, wanted = PoolIndex(FACTOR), []
    for length in range(1, 6):
        holder = index.add()
        put(index, holder, dict.fromkeys(range(length), 2))
        index.show(holder)
        wanted.append((holder, length, 0 if length > 3 else length))
    found = index.longest_in_dram(np.arange(9, dtype=np.uint64))
    assert list(zip(*(one.tolist() for one in found), strict=True)) == wanted


def test_once_all_is_compiled_nothing_is_compiled_again() -> None:
    index_module.compiled()
    known = signatures()
    compiled_for = {name for name, count in known.items() if count}
    assert compiled_for >= {"put", "sweep", "move", "tiers_of", "holding", "longest", "remember"}
    model, index = Model(1, chains=3, length=9), PoolIndex(FACTOR)
    holders = [index.add() for _ in range(5)]
    for holder in holders:
        index.show(holder)
        put(index, holder, model.closed())
        answer(index, model.chains[0])
    index._grow()
    index.drop(holders[0])
    swept(index)
    assert signatures() == known


def signatures() -> dict[str, int]:
    """For how many types each loop is compiled."""
    named = {**vars(loops), **vars(word)}.items()
    return {name: len(one.signatures) for name, one in named if hasattr(one, "signatures")}
