"""The table of the pool behaves like a dict of dicts, and its answers are those of plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.conductor.table import Table
from kvstore.core.fingerprints import Fingerprints


def blocks_of(model: dict[int, int]) -> Fingerprints:
    made = Fingerprints()
    made.put_all(np.array(list(model), np.uint64), np.array(list(model.values()), np.uint8))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_the_table_behaves_like_a_dict_of_dicts(seed: int) -> None:
    dice = random.Random(seed)
    chains = [[dice.randrange(1 << 64) for _ in range(12)] for _ in range(8)]
    names, table, model = list("abcd"), Table(), dict[str, dict[int, int]]()

    def closed() -> dict[int, int]:
        """What a node may list: of each chain some leading blocks."""
        some = [one for chain in chains for one in chain[: dice.randrange(13)]]
        return {one: dice.randrange(1, 4) for one in some}

    for _ in range(150):
        action, name = dice.random(), dice.choice(names)
        if action < 0.3 or name not in model:
            model[name] = closed()
            table.replace(name, blocks_of(model[name]))
        elif action < 0.4:
            table.forget(name)
            del model[name]
        else:
            now = closed()
            changed = {one: now.get(one, 0) for one in {*now, *model[name]}}
            prints = np.array(list(changed), np.uint64)
            table.change(name, prints, np.array(list(changed.values()), np.uint8))
            model[name] = now
        table.check()
        assert [one in table for one in names] == [one in model for one in names]
        chain, asked = dice.choice(chains), dice.sample(names, 3)
        leading = {
            one: next((i for i, each in enumerate(chain) if each not in model[one]), len(chain))
            for one in asked
            if one in model
        }
        assert table.longest(chain, asked) == {one: n for one, n in leading.items() if n}
        for one in model:
            tiers = table.tiers(one, np.array(chain, np.uint64)).tolist()
            assert tiers == [model[one].get(each, 0) for each in chain]
            assert table.count_max(one) >= len(model[one])


def test_a_node_that_was_never_told_of_is_forgotten_without_ado() -> None:
    table = Table()
    table.forget("nobody")
    assert table.longest([1, 2], ["nobody"]) == {} and "nobody" not in table
