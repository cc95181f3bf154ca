"""A node has one number for as long as anybody means it by that; then it is another's."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.conductor.hosts import NOBODY, Hosts
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.table import Table

NAMES = "abcdef"


def listed(table: Table, name: str) -> None:
    table.begin(name)
    table.add(name, np.array([1], np.uint64), np.array([1], np.uint8))
    table.finish(name)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_told_apart_whatever_comes_and_goes(seed: int) -> None:
    dice, table, freed = random.Random(seed), Table(PoolIndex(1)), list[int]()
    hosts = Hosts(table, freed.append)
    used, named = dict.fromkeys(NAMES, 0), set[str]()
    for _ in range(300):
        name, before = dice.choice(NAMES), hosts.count
        match dice.randrange(4):
            case 0:
                hosts.use(name)
                used[name] += 1
            case 1 if used[name]:
                hosts.release(name)
                used[name] -= 1
            case 2:
                listed(table, name)  # anew, under another number of the index
            case _:
                named = {one for one in dice.sample(NAMES, 3) if one in table}
        hosts.see(named & {one for one in NAMES if one in table})
        hosts.check()
        assert hosts.count <= len(NAMES) and hosts.count >= before
        there = {one for one in NAMES if used[one]} | named
        numbers = {one: hosts.number(one) for one in there}
        assert len(set(numbers.values())) == len(there)
        assert all(hosts.names[number] == one for one, number in numbers.items())
        by_holder = np.flatnonzero(hosts.of_holder != NOBODY).tolist()
        assert by_holder == sorted(table.number(one) for one in named)
        assert all(hosts.of_holder[table.number(one)] == numbers[one] for one in named)
    assert freed, "no number was ever free again"


def test_a_number_that_is_anothers_is_told_of_before() -> None:
    freed = list[int]()
    hosts = Hosts(Table(PoolIndex(1)), freed.append)
    first = hosts.use("a")
    hosts.use("a")
    hosts.release("a")
    assert not freed, "another engine is there still"
    hosts.release("a")
    assert freed == [first] and hosts.use("b") == first
