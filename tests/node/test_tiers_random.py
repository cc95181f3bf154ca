"""Long random lives of small tiers: whatever moves where, all that is counted stays right."""

from __future__ import annotations

import pytest

from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.room import Room
from kvstore.errors import InvariantError
from kvstore.node.between import Between
from tests.node.tiers_life import TiersLife

STEPS = 600
TURNS_RED = pytest.raises((AssertionError, InvariantError, KeyError))


def lived(seed: int) -> TiersLife:
    life = TiersLife(seed)
    life.run(STEPS)
    life.finish()
    return life


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_three_tiers_are_where_they_are_said_to_be_whatever_moves(seed: int) -> None:
    seen, above = lived(seed).seen, ["from HBM"] * (seed % 2)
    for deed in (
        "sealed",
        "evicted",
        "stored",
        "from SSD",
        *above,
        "Overloaded",
        "no room to move",
    ):
        assert seen[deed] > 1, f"{deed} is hardly met: {seen}"


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Between, "let_go_above", lambda self, slots: None),
        (Lanes, "discard", lambda self, slot: None),
        (Room, "_over_quota", lambda self, slabs, tenant, more, spared: []),
        (Index, "moved", lambda self, slot: None),
    ],
)
def test_what_goes_wrong_between_tiers_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: object
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with TURNS_RED:
        for seed in range(20):
            lived(seed)
