"""A pin ends by its holder, with its session, or by the owner's clock, and by nothing else."""

from __future__ import annotations

import random

import pytest

from kvstore.core import pins as pins_module
from kvstore.core.lifecycle import Slot, State
from kvstore.core.pins import Pin, Pins

TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception, KeyError))


def sealed(number: int = 0) -> Slot:
    return Slot(number, 0, (b"", 0), State.SEALED, generation=number + 1, root=b"r" * 16)


def pins_behave_like_a_dict(seed: int, steps: int = 1_500) -> None:
    dice = random.Random(seed)
    slots = [sealed(i) for i in range(4)]
    pins, now = Pins(), 0.0
    model: dict[int, Pin] = {}
    for _ in range(steps):
        action = dice.random()
        if action < 0.4:
            pin = pins.pin(dice.choice(slots), dice.randrange(3), now + dice.uniform(0, 20))
            assert pin.serial not in model, "a serial came back"
            model[pin.serial] = pin
        elif action < 0.55 and model:
            pins.renew(dice.choice(list(model.values())), now + dice.uniform(0, 40))
        elif action < 0.7 and model:
            pin = model.pop(dice.choice(list(model)))
            assert pins.unpin(pin) is pin.slot
        elif action < 0.73:
            session = dice.randrange(3)
            ours = [pin for pin in model.values() if pin.session == session]
            assert set(pins.of_session(session)) == set(ours)
            for pin in ours:
                pins.unpin(model.pop(pin.serial))
        else:
            now += dice.uniform(0, 3)
            due = {pin.serial for pin in model.values() if pin.expires <= now}
            for pin in pins.expired(now):
                due.remove(pin.serial)
                pins.unpin(model.pop(pin.serial))
            assert not due, "a pin outlived its time"
        assert len(pins) == len(model)
        assert all(pins.get(serial) is pin for serial, pin in model.items())
        for slot in slots:
            assert slot.pins == sum(pin.slot is slot for pin in model.values())
        pins.check()


@pytest.mark.parametrize("seed", range(4))
def test_pins_behave_like_a_dict_with_a_clock(seed: int) -> None:
    pins_behave_like_a_dict(seed)


def test_a_pin_lasts_to_its_very_time_and_not_longer() -> None:
    pins, slot = Pins(), sealed()
    pin = pins.pin(slot, 1, expires=10.0)
    assert list(pins.expired(9.999)) == [] and slot.held
    assert list(pins.expired(10.0)) == [pin]
    pins.unpin(pin)
    assert not slot.held and pins.get(pin.serial) is None


def test_a_renewed_pin_forgets_its_old_end_whether_earlier_or_later() -> None:
    pins, slot = Pins(), sealed()
    later, sooner = pins.pin(slot, 1, 10.0), pins.pin(slot, 1, 10.0)
    pins.renew(later, 20.0)
    pins.renew(sooner, 5.0)
    ended = []
    for now in (5.0, 10.0, 19.9, 20.0):
        for pin in pins.expired(now):
            ended.append((now, pin))
            pins.unpin(pin)
        pins.check()
    assert ended == [(5.0, sooner), (20.0, later)]


def test_two_readers_of_a_slot_hold_it_apart() -> None:
    pins, slot = Pins(), sealed()
    one, two = pins.pin(slot, 1, 10.0), pins.pin(slot, 2, 10.0)
    pins.unpin(one)
    assert slot.held and pins.of_session(1) == [] and pins.of_session(2) == [two]
    pins.unpin(two)
    assert not slot.held


def test_a_million_openings_leave_no_heap_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "STALE_MAX", 10)
    pins, slot = Pins(), sealed()
    kept = [pins.pin(slot, 1, 1_000.0 + i) for i in range(5)]
    for i in range(500):
        pins.unpin(pins.pin(slot, 2, 900.0 + i))
        pins.renew(kept[i % 5], 2_000.0 + i)
        assert len(pins._by_expiry) <= 2 * len(pins) + 10
        pins.check()
    assert {pin.serial for pin in pins.expired(5_000.0)} == {pin.serial for pin in kept}


def test_pins_that_cannot_be_are_noticed() -> None:
    pins, slot = Pins(), sealed()
    pins.pin(slot, 1, 10.0)
    for name, wrong in (("pins", 2), ("pins", 0), ("generation", 99)):
        right = getattr(slot, name)
        setattr(slot, name, wrong)
        with pytest.raises(AssertionError):
            pins.check()
        setattr(slot, name, right)
    pins.check()
    with pytest.raises(AssertionError):
        pins.pin(Slot(0, 0, (b"", 0)), 1, 10.0)


def test_a_renewal_without_a_place_on_the_heap_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pins, "renew", lambda self, pin, expires: setattr(pin, "expires", expires))
    with TURNS_RED:
        pins_behave_like_a_dict(0)


def test_a_sweep_that_loses_pins_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(self: Pins) -> None:
        del self._by_expiry[20:]

    monkeypatch.setattr(Pins, "_sweep", sweep)
    with TURNS_RED:
        pins_behave_like_a_dict(0)


def test_a_pin_that_is_not_counted_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    unpin = Pins.unpin

    def twice(self: Pins, pin: Pin) -> Slot:
        slot = unpin(self, pin)
        slot.pins = max(0, slot.pins - 1)
        return slot

    monkeypatch.setattr(Pins, "unpin", twice)
    with TURNS_RED:
        pins_behave_like_a_dict(0)
