"""Copies in DRAM go in the order of a naive look at the two ends of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Slot, State
from kvstore.core.slabs import Slabs

OWNERS = [(b"a", 0), (b"b", 0)]
TENANTS = ["default", "other"]


class Ranked(Index):
    """An index whose kinds and worths a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[Slot, int] = {}
        self.worths: dict[Slot, float] = {}

    def kind(self, slot: Slot) -> int:
        return self.kinds[slot]

    def worth(self, slot: Slot) -> tuple[float, int]:
        return self.worths[slot], 0


def slowly_coldest(
    index: Ranked, recency: list[Slot], owner: object, tenant: str, spared: set[bytes]
) -> list[Slot]:
    """Look at the oldest and the youngest of each kind, take the least, look again."""
    left = [
        slot
        for slot in recency
        if (slot.owner, slot.tenant) == (owner, tenant) and not slot.held and slot.key not in spared
    ]
    order = []
    while left:
        ends = []
        for kind in {index.kinds[slot] for slot in left}:
            alike = [slot for slot in left if index.kinds[slot] == kind]
            ends += [alike[0], alike[-1]]
        least = min(ends, key=lambda slot: (index.worths[slot], slot.number))
        order.append(least)
        left.remove(least)
    return order


def lanes_behave_like_their_model(seed: int) -> None:
    dice, index = random.Random(seed), Ranked()
    lanes = Lanes(index, Slabs(1, 1))
    recency: list[Slot] = []  # least recently used first
    for number in range(400):
        slot = Slot(number, 0, dice.choice(OWNERS), State.SEALED, key=b"%d" % number)
        slot.tenant = dice.choice(TENANTS)
        index.kinds[slot], index.worths[slot] = dice.randrange(3), dice.random()
        what = dice.random()
        if what < 0.5 or not recency:
            lanes.add(slot)
            recency.append(slot)
        elif what < 0.8:
            used = dice.choice(recency)
            index.kinds[used], index.worths[used] = dice.randrange(3), dice.random()
            recency.remove(used)
            recency.append(used)
            lanes.touch(used)
        else:
            gone = recency.pop(dice.randrange(len(recency)))
            lanes.discard(gone)
            assert gone not in lanes
        lanes.touch(slot)  # changes nothing where it is the youngest, or not here
        assert set(lanes) == set(recency) and len(lanes) == len(recency)
        if number % 10 == 0:
            pinned = [one for one in recency if dice.random() < 0.1]
            for one in pinned:
                one.pins = 1
            spared = {one.key for one in recency if dice.random() < 0.1}
            for owner in OWNERS:
                for tenant in TENANTS:
                    found = list(lanes.coldest(owner, tenant, spared))
                    assert found == slowly_coldest(index, recency, owner, tenant, spared)
            for one in pinned:
                one.pins = 0


@pytest.mark.parametrize("seed", range(10))
def test_the_order_is_that_of_looking_at_both_ends_of_every_kind(seed: int) -> None:
    lanes_behave_like_their_model(seed)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("touch", lambda self, slot: None),
        ("discard", lambda self, slot: None),
        ("coldest", lambda self, owner, tenant, spared: REAL(self, owner, tenant, ())),
    ],
)
def test_the_model_finds_out_when(
    name: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, name, mutant)
    with pytest.raises(AssertionError):
        for seed in range(10):
            lanes_behave_like_their_model(seed)


REAL = Lanes.coldest


def test_a_block_that_is_used_changes_its_kind() -> None:
    index = Ranked()
    lanes = Lanes(index, Slabs(1, 1))
    slots = [Slot(number, 0, OWNERS[0], State.SEALED, key=b"%d" % number) for number in range(3)]
    for slot in slots:
        slot.tenant, index.kinds[slot], index.worths[slot] = "default", 0, 0.5
        lanes.add(slot)
    index.worths[slots[1]], index.kinds[slots[1]] = 0.1, 1
    assert next(lanes.coldest(OWNERS[0], "default", ())) is slots[0], "in the middle of its kind"
    lanes.touch(slots[1])
    assert next(lanes.coldest(OWNERS[0], "default", ())) is slots[1], "the only one of its kind"
