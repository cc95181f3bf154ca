"""A slot moves along the table or not at all."""

from __future__ import annotations

import itertools

import pytest

from kvstore.core.lifecycle import NEXT, Slot, State, move_all
from kvstore.errors import InvariantError


@pytest.mark.parametrize(("here", "there"), list(itertools.product(State, repeat=2)))
def test_a_slot_moves_only_where_the_table_says(here: State, there: State) -> None:
    slot = Slot(7, 0, (b"", 0), state=here)
    if there in NEXT[here]:
        slot.move(there)
        assert slot.state is there
    else:
        with pytest.raises(InvariantError, match=f"slot 7: {here.name} -> {there.name}"):
            slot.move(there)
        assert slot.state is here


def test_slots_move_together_or_none_of_them_does() -> None:
    slots = [Slot(number, 0, (b"", 0)) for number in range(3)]
    move_all(slots, State.FILLING)
    assert {slot.state for slot in slots} == {State.FILLING}
    slots[2].move(State.SEALED)
    with pytest.raises(InvariantError, match="slot 2: SEALED -> SEALED"):
        move_all(slots, State.SEALED)
    assert slots[0].state is slots[1].state is State.FILLING


def test_every_way_through_the_table_leads_back_to_empty_past_a_seal_or_not() -> None:
    assert NEXT.keys() == set(State)
    assert NEXT[State.DOOMED] == {State.EMPTY}, "memory in use would be given away"
    assert State.EMPTY not in NEXT[State.SEALED] | NEXT[State.FILLING]
    assert State.FILLING not in NEXT[State.SEALED], "a sealed block could be written again"


@pytest.mark.parametrize(
    "slot",
    [
        Slot(0, 0, (b"", 0), pins=-1),
        Slot(0, 0, (b"", 0), State.DOOMED, windows=-1),
        Slot(0, 0, (b"", 0), pins=1),
        Slot(0, 0, (b"", 0), windows=1),
        Slot(0, 0, (b"", 0), listed=True),
        Slot(0, 0, (b"", 0), State.FILLING, root=b"r" * 16),
        Slot(0, 0, (b"", 0), State.FILLING, listed=True),
        Slot(0, 0, (b"", 0), State.SEALED),
        Slot(0, 0, (b"", 0), State.SEALED, root=b"r" * 16, windows=1),
        Slot(0, 0, (b"", 0), State.DOOMED, root=b"r" * 16, listed=True),
    ],
)
def test_a_slot_that_cannot_be_is_noticed(slot: Slot) -> None:
    with pytest.raises(AssertionError):
        slot.check()


def test_slots_that_can_be_pass() -> None:
    for slot in (
        Slot(0, 0, (b"", 0)),
        Slot(0, 0, (b"", 0), State.FILLING, windows=2, pins=1),
        Slot(0, 0, (b"", 0), State.SEALED, root=b"r" * 16, pins=3, listed=True),
        Slot(0, 0, (b"", 0), State.DOOMED, windows=1),
    ):
        slot.check()
    assert Slot(0, 0, (b"", 0), pins=1).held and Slot(0, 0, (b"", 0), windows=1).held
    assert not Slot(0, 0, (b"", 0), State.SEALED).held
