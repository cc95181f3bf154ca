"""Long random lives of a small node: whatever callers do, readers get what writers wrote."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State
from kvstore.core.slabs import Slabs
from kvstore.memory.heads import Heads
from kvstore.memory.strips import Damaged
from kvstore.node.blocks import Blocks
from kvstore.node.sessions import Session
from kvstore.node.store import Store
from tests.node.life import Life

STEPS = 3_000
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception, Damaged))


@pytest.mark.parametrize("seed", range(4))
def test_readers_get_what_writers_wrote_whatever_everybody_does(seed: int) -> None:
    life = Life(seed)
    life.run(STEPS)
    life.finish()
    for deed in ("sealed", "existed", "waiting", "damaged", "zombies", "Overloaded", "NotYours"):
        assert life.seen[deed] > 1, f"{deed} is hardly tried: {life.seen}"
    for found in ("SEALED", "FILLING", Miss.UNLISTED, Miss.EVICTED, Miss.UNSEALED, "WrongTenant"):
        assert life.seen[found] > 2, f"{found} is hardly met: {life.seen}"


def _stale_give(self: Slabs, slots: Sequence[Slot], give: object = Slabs.give_all) -> None:
    kept = [slot.generation for slot in slots]
    give(self, slots)  # type: ignore[operator]
    for slot, generation in zip(slots, kept, strict=True):
        self.generation = slot.generation = generation


def _unsealed_seal(self: Heads, *_: object) -> None:
    return None


def _settle_under_a_pin(
    self: Blocks, slots: Sequence[Slot], settle: object = Blocks.settle_all
) -> None:
    for slot in slots:
        if slot.state is State.DOOMED and not slot.windows:
            slot.pins = 0
    settle(self, slots)  # type: ignore[operator]


def _unlisting_forgotten(
    self: Index, slots: Sequence[Slot], why: Miss, drop: object = Index.drop_all
) -> None:
    for slot in slots:
        slot.listed = False
    drop(self, slots, why)  # type: ignore[operator]


def _last_seal_wins(
    self: Blocks, slots: Sequence[Slot], layout: object, seal_all: object = Blocks.seal_all
) -> list[bool]:
    for slot in slots:
        held = self.index.held(slot.key)
        if held is not None:
            self.drop(held, Miss.REMOVED)
    return seal_all(self, slots, layout)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Index, "drop_all", _unlisting_forgotten),
        (Slabs, "give_all", _stale_give),
        (Heads, "first_unwritten", _unsealed_seal),
        (Blocks, "settle_all", _settle_under_a_pin),
        (Blocks, "_leave", lambda self, slots: None),
        (Blocks, "seal_all", _last_seal_wins),
        (Session, "may_write", property(lambda self: False)),
        (Store, "_let_go", lambda self, window: None),
        (Heads, "mark", lambda self, slot: None),
    ],
)
def test_a_broken_part_turns_the_random_life_red(
    owner: type, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with TURNS_RED:
        life = Life(0)
        life.run(STEPS)
        life.finish()
