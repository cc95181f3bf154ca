"""What goes to SSD: all while there is room, then what is worth it, and what is asked for."""

from __future__ import annotations

from kvstore.core.lifecycle import Slot
from kvstore.core.placement import EASED, PRESSED, TierView, Waiting, plan, presses


def waiting(
    number: int, worth: float, displaced: float | None = None, asked: bool = False
) -> Waiting:
    return Waiting(Slot(number, 0, (b"a", 0)), asked, worth, displaced)


def planned(*waits: Waiting, pressed: bool = False) -> list[tuple[int, bool]]:
    return [(move.slot.number, move.write) for move in plan(TierView(pressed, waits))]


def test_while_there_is_room_everything_is_written_as_it_came() -> None:
    assert planned(waiting(1, 0.1), waiting(2, 0.9)) == [(1, True), (2, True)]


def test_on_a_full_ssd_a_block_must_be_worth_what_it_displaces() -> None:
    moves = planned(waiting(1, 0.1, 0.2), waiting(2, 0.2, 0.2), waiting(3, 0.3, 0.2))
    assert moves == [(1, False), (2, True), (3, True)]


def test_what_is_asked_for_goes_first_whatever_it_is_worth() -> None:
    moves = planned(waiting(1, 0.9, 0.2), waiting(2, 0.0, 0.2, asked=True))
    assert moves == [(2, True), (1, True)]


def test_under_pressure_what_is_worth_most_goes_first() -> None:
    waits = [waiting(1, 0.1), waiting(2, 0.9), waiting(3, 0.5), waiting(4, 0.0, asked=True)]
    assert [number for number, _ in planned(*waits, pressed=True)] == [4, 2, 3, 1]


def test_pressure_begins_later_than_it_ends() -> None:
    between = (EASED + PRESSED) / 2
    assert presses(PRESSED + 0.01, False) and not presses(between, False)
    assert presses(between, True) and not presses(EASED, True)
