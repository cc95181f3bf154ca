"""Slabs that a tenant uses less than all of another owner's: found by few looks, in turns."""

from __future__ import annotations

import pytest

from kvstore.block import Miss
from kvstore.core.less_used import LOOKED_MAX
from kvstore.core.lifecycle import Slot
from tests.node.rig import LARGE, SMALL, Rig, prompt

SLABS = 5 * LOOKED_MAX
LARGE_SLOTS = 2  # in a slab
ROUND = SLABS // LOOKED_MAX + 1  # looks in which each slab had its turn
OLD = [[prompt(SMALL, 4, start=1000 * (4 * slab + n)) for n in range(4)] for slab in range(SLABS)]


class Full:
    """A full node. The new model has a slab; of each other slab the old one uses a block, as often
    as the new one wants room."""

    def __init__(self) -> None:
        self.rig, self._wanted = Rig(slabs=SLABS), 0
        self._me = self.rig.session()
        for slab in OLD:
            for one in slab:
                self.rig.put(self._me, SMALL, one)
        for _ in range(LARGE_SLOTS):
            self._put()

    def wants_room(self, times: int, unused: int | None = None) -> None:
        for _ in range(times):
            for number, slab in enumerate(OLD[1:], 1):
                if number != unused:
                    assert self.rig.hits(SMALL, slab[2]) == 1, "what is used stays"
            self._put()

    def left_of(self, slab: int) -> int:
        return sum(self.rig.hits(SMALL, one) for one in OLD[slab])

    def _put(self) -> None:
        self.rig.put(self._me, LARGE, prompt(LARGE, 4, start=1000 * self._wanted))
        self._wanted += 1


def test_where_all_slabs_are_used_few_blocks_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    full, looked = Full(), list[Slot]()
    full.wants_room(ROUND)
    really = full.rig.blocks.index.worth

    def worth(slot: Slot) -> tuple[float, int]:
        looked.append(slot)
        return really(slot)

    monkeypatch.setattr(full.rig.blocks.index, "worth", worth)
    full.wants_room(SLABS)
    assert 0 < len(looked) <= SLABS * (LOOKED_MAX + 1), "of each slab the one that keeps it"


@pytest.mark.parametrize("unused", [1, SLABS // 2, SLABS - 1])
def test_the_one_slab_that_is_not_used_is_found_wherever_it_is(unused: int) -> None:
    full = Full()
    full.wants_room(ROUND, unused)
    assert full.left_of(unused) == 0
    full.rig.store.check()


def test_a_slab_goes_once_what_kept_it_is_gone() -> None:
    full = Full()
    full.wants_room(ROUND)
    (key,) = full.rig.store.keys("default", SMALL, OLD[7][2].hashes)
    held = full.rig.blocks.index.held(key)
    assert held is not None
    full.rig.blocks.drop(held, Miss.REMOVED)
    full.wants_room(ROUND + 1, unused=7)
    assert full.left_of(7) == 0
