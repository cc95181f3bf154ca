"""No tenant holds all of DRAM while there are others, and each slot counts once."""

from __future__ import annotations

import pytest

from kvstore.core.held import Held
from kvstore.core.lifecycle import Slot, State
from kvstore.core.pins import Pins
from kvstore.core.slabs import Slabs
from kvstore.core.windows import Windows
from kvstore.errors import Invalid, Overloaded
from kvstore.layout import Fragment, SlotLayout

SLOTS, SLOT = 16, 1_024
OWNER = (b"n" * 32, 0)
LAYOUT = SlotLayout(layers=2, kv_heads=2, block_tokens=4, parts=1, run_bytes=8)


class Desk:
    """Four slabs of four slots, as tenants come to hold them."""

    def __init__(self, *tenants: str) -> None:
        self.slabs, self.tenants = Slabs(SLOTS * SLOT, 4 * SLOT), list(tenants)
        self.pins, self.windows = Pins(), Windows()
        self.held = Held(self.slabs, self.tenants, self.pins, self.windows)

    def filling(self, tenant: str, count: int) -> list[Slot]:
        slots = self.slabs.take_all(OWNER, SLOT, count)
        assert len(slots) == count
        for slot in slots:
            slot.tenant = tenant
            slot.move(State.FILLING)
        return slots

    def gets(self, tenant: str) -> int:
        """How many more windows it gets, one at a time."""
        for count in range(SLOTS):
            try:
                self.held.check_windows(tenant, SLOT, 1)
            except Overloaded as refused:
                assert tenant in str(refused) and refused.retry_after_ms > 0
                return count
            self.windows.open_all(self.filling(tenant, 1), 1, LAYOUT.whole, LAYOUT)
            self.held.check()
        return SLOTS


def test_a_tenant_gets_three_quarters_and_whoever_comes_next_still_some() -> None:
    desk = Desk("a", "b", "c")
    assert desk.gets("a") == 12
    assert desk.gets("b") == 3
    assert desk.gets("c") == 1


def test_the_only_tenant_there_is_holds_all_and_those_who_come_wait_for_what_it_lets_go_of() -> (
    None
):
    desk = Desk("a")
    assert desk.gets("a") == SLOTS
    desk.tenants.append("b")
    assert desk.gets("b") == 0
    serials = range(1, 5)
    desk.windows.seal_all([one for n in serials if (one := desk.windows.get(n))], 0.0)
    desk.held.check()
    desk.held.check_windows("b", SLOT, 3)
    for tenant, count in (("b", 4), ("a", 1)):
        with pytest.raises(Overloaded, match="no tenant takes all"):
            desk.held.check_windows(tenant, SLOT, count)


def test_many_together_are_refused_where_one_of_them_would_be() -> None:
    desk = Desk("a", "b")
    desk.held.check_windows("a", SLOT, 12)
    with pytest.raises(Overloaded):
        desk.held.check_windows("a", SLOT, 13)
    desk.held.check_windows("a", SLOT, 0)


def test_a_slot_that_is_pinned_often_and_written_counts_once() -> None:
    desk = Desk("a", "b")
    slots = desk.filling("a", 12)
    first = desk.windows.open_all(slots, 1, LAYOUT.whole, LAYOUT)
    assert not desk.held.beyond("a", slots)  # for who reads what is written
    pins = [desk.pins.pin(slot, 2, 9.0) for slot in (*slots, *slots)]
    assert desk.held.of("a") == 12 * SLOT
    desk.held.check()
    run = desk.windows.run(first, 12)
    assert run is not None
    desk.windows.seal_run(run)
    desk.pins.unpin_all(pins[:12])
    assert desk.held.of("a") == 12 * SLOT, "each is pinned once more"
    more = desk.filling("a", 1)
    assert desk.held.beyond("a", [*more, *slots]) == set(more)
    desk.pins.unpin_all(pins[12:])
    assert desk.held.of("a") == 0
    desk.held.check()


def test_of_what_a_tenant_may_not_pin_whole_the_first_are_left_to_it() -> None:
    desk = Desk("a", "b")
    slots = desk.filling("a", 14)
    assert desk.held.beyond("a", slots) == set(slots[12:])
    assert desk.held.beyond("a", [*slots[:12], *slots[:12]]) == set(), "each counts once"
    desk.pins.pin_all([slots[13], *slots[:3]], 1, 9.0)
    assert desk.held.beyond("a", slots) == {slots[11], slots[12]}, "what is held costs nothing"
    assert not desk.held.beyond("a", slots[:3]) and not desk.held.beyond("a", ())
    desk.tenants.remove("b")
    assert not desk.held.beyond("a", slots), "it is alone"


def test_what_the_members_of_a_group_share_counts_once() -> None:
    desk = Desk("a", "b")
    slots, halves = desk.filling("a", 2), (Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1))
    groups = [("a", "tp2", bytes([i])) for i in range(2)]
    members = [desk.windows.open_all(slots, 1, half, LAYOUT, groups) for half in halves]
    assert desk.held.of("a") == 2 * SLOT
    for first in members:
        assert desk.held.of("a") == 2 * SLOT
        desk.windows.seal_all([one for n in (0, 1) if (one := desk.windows.get(first + n))], 0.0)
        desk.held.check()
    assert desk.held.of("a") == 0


def test_a_part_that_waits_for_the_others_is_held_until_the_block_is_whole_or_given_up() -> None:
    desk = Desk("a", "b")
    slots, left, right = desk.filling("a", 2), Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)
    windows, groups = desk.windows, [("a", "tp2", bytes([i])) for i in range(2)]

    def holds(count: int) -> None:
        windows.check()
        desk.held.check()
        assert desk.held.of("a") == count * SLOT

    first, second = (
        windows.open(slot, 1, left, LAYOUT, group)
        for slot, group in zip(slots, groups, strict=True)
    )
    assert windows.seal_all([first, second], 0.0) == [False, False]
    holds(2)
    assert not desk.held.beyond("a", slots)
    pins = [desk.pins.pin(slot, 2, 9.0) for slot in slots]
    holds(2)
    desk.pins.unpin_all(pins)
    holds(2)
    partner = windows.open(slots[0], 2, right, LAYOUT, groups[0])
    holds(2)
    assert windows.seal(partner, 0.0)
    holds(1)
    for _ in range(2):
        windows.give_up(second)
        slots[1].state = State.DOOMED
        holds(0)


def test_what_a_slab_is_cut_into_counts_as_all_of_it() -> None:
    """Two slots of three eighths: who holds both holds the slab."""
    slabs, pins, windows = Slabs(32 * SLOT, 8 * SLOT), Pins(), Windows()
    held = Held(slabs, ["a", "b"], pins, windows)
    held.check_windows("a", 3 * SLOT, 6)
    with pytest.raises(Overloaded):
        held.check_windows("a", 3 * SLOT, 7)


@pytest.mark.parametrize("tenants", [["a"], ["a", "b"]], ids=["alone", "beside another"])
def test_a_block_larger_than_a_slab_is_refused_in_the_slabs_words(tenants: list[str]) -> None:
    slabs = Slabs(32 * SLOT, 8 * SLOT)
    held = Held(slabs, tenants, Pins(), Windows())
    with pytest.raises(Invalid, match="larger --slab"):
        held.check_windows("a", 9 * SLOT, 1)
        slabs.room(OWNER, 9 * SLOT)  # where nobody else is that comes next
