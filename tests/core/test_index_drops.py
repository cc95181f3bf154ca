"""Blocks that are dropped together go as if each had been dropped by itself."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from kvstore.block import Miss
from kvstore.core.index import Index
from tests.core.test_index import keys_of, sealed


def all_that_is_known(index: Index) -> list[object]:
    """Of what is held and what is gone, and what others are told of it."""
    index.check()
    return [
        [(slot.key, slot.listed, sorted(slot.children)) for slot in index],
        list(index.recent()),
        keys_of(index.coldest()),
        list(index.gone._blocks.items()),
        {key: sorted(some) for key, some in index._orphans.items()},
        dict(index.listing.items()),
        index.listing.sequence,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_to_drop_many_is_to_drop_each_of_them_in_their_order(seed: int) -> None:
    both = Index(), Index()
    for index in both:
        dice = random.Random(seed)
        names = [f"k{i:07}".encode() for i in range(120)]
        for i, key in enumerate(names):
            index.add(sealed(key, dice.choice([b"", *names[max(0, i - 4) : i]])))
            if not i % 5:
                index.touch([dice.choice(names[: i + 1])])
        for key in dice.sample(names, 6):
            index.drop(key, Miss.DAMAGED)
        why = dice.choice([Miss.EVICTED, Miss.REMOVED])
        for _ in range(3):
            held = list(index)
            some = {slot.key: slot for slot in islice(index.coldest(), dice.randrange(40))}
            if dice.random() < 0.5:  # with what others stand behind, and with what is not listed
                some |= {slot.key: slot for slot in dice.sample(held, 5)}
            if index is both[0]:
                index.drop_all(list(some.values()), why)
            else:
                for key in some:
                    index.drop(key, why)
            assert not any(slot.listed or slot.children for slot in some.values())
    assert all_that_is_known(both[0]) == all_that_is_known(both[1])
