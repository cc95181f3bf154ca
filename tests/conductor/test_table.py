"""The table of the pool behaves like a dict of dicts, and its answers are those of plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from kvstore.conductor.index import PoolIndex
from kvstore.conductor.table import Table


def columns(model: dict[int, int]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    return np.array(list(model), np.uint64), np.array(list(model.values()), np.uint8)


def table_of() -> Table:
    return Table(PoolIndex(0x9E3779B97F4A7C15))


@pytest.mark.parametrize("seed", range(6))
def test_the_table_behaves_like_a_dict_of_dicts(seed: int) -> None:
    dice = random.Random(seed)
    chains = [[dice.randrange(1 << 64) for _ in range(12)] for _ in range(8)]
    names, table, model = list("abcd"), table_of(), dict[str, dict[int, int]]()

    def closed() -> dict[int, int]:
        """What a node may list: of each chain some leading blocks."""
        some = [one for chain in chains for one in chain[: dice.randrange(13)]]
        return {one: dice.randrange(1, 4) for one in some}

    for _ in range(150):
        action, name = dice.random(), dice.choice(names)
        if action < 0.3 or name not in model:
            model[name] = closed()
            table.begin(name)
            if dice.random() < 0.2:
                table.add(name, *columns(closed()))
                table.begin(name)  # another stream, from the start
            assert table.add(name, *columns(model[name])) == len(model[name])
            table.finish(name)
        elif action < 0.4:
            table.forget(name)
            del model[name]
        else:
            now = closed()
            changed = {one: now.get(one, 0) for one in {*now, *model[name]}}
            assert table.change(name, *columns(changed)) == len(now)
            model[name] = now
        table.check()
        assert [one in table for one in names] == [one in model for one in names]
        chain, asked = dice.choice(chains), dice.sample(names, 3)
        leading = {
            one: next((i for i, each in enumerate(chain) if each not in model[one]), len(chain))
            for one in asked
            if one in model
        }
        prints = np.array(chain, np.uint64)
        assert table.longest(prints, asked) == {one: n for one, n in leading.items() if n}
        counts = {one: sum(each in model[one] for each in chain) for one in model}
        assert table.holding(prints) == {one: n for one, n in counts.items() if n}
        if dice.random() < 0.2:
            table.sweep()
        for one in model:
            tiers = table.tiers(one, prints).tolist()
            assert tiers == [model[one].get(each, 0) for each in chain]
            assert table.count(one) == len(model[one])


def test_a_node_that_was_never_told_of_is_forgotten_without_ado() -> None:
    table = table_of()
    table.forget("nobody")
    assert table.longest(np.array([1, 2], np.uint64), ["nobody"]) == {} and "nobody" not in table
