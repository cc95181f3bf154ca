"""Readers' holds on slots. A pin ends by Close, with its session, or by the owner's clock.

Time is an argument: the owner's monotonic seconds. Nothing here reads a clock, and a reader's own
clock never counts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from kvstore.core.lifecycle import Slot, State

STALE_MAX = 1_024  # ends that no longer count may wait on the heap, and as many as there are pins


@dataclass(eq=False, slots=True)
class Pin:
    """One reader's hold on one generation of a slot."""

    serial: int
    slot: Slot
    generation: int
    session: int
    expires: float  # the owner's monotonic seconds


class Pins:
    """Every pin of a node, by serial number, session and expiry."""

    def __init__(self) -> None:
        self._pins: dict[int, Pin] = {}
        self._of_session: dict[int, set[int]] = {}
        self.of_tenant = Counter[str]()  # how many; a session pins its own tenant's slots alone
        self.on_held: Callable[[Sequence[Slot]], None] = lambda slots: None  # by nobody until now
        self.on_unheld: Callable[[Sequence[Slot]], None] = lambda slots: None  # by nobody from now
        self._by_expiry: list[tuple[float, int, int]] = []  # end, first serial, how many from it
        self._next = 1

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def get(self, serial: int) -> Pin | None:
        return self._pins.get(serial)

    def pin(self, slot: Slot, session: int, expires: float) -> Pin:
        return self._pins[self.pin_all([slot], session, expires)]

    def pin_all(self, slots: Sequence[Slot], session: int, expires: float) -> int:
        """Pin each of these, with consecutive serials; the first of them."""
        first, fresh = self._next, list[Slot]()
        for serial, slot in enumerate(slots, first):
            assert slot.state is not State.EMPTY, "an empty slot cannot be pinned"
            self._pins[serial] = Pin(serial, slot, slot.generation, session, expires)
            if not (slot.pins or slot.windows):
                fresh.append(slot)
            slot.pins += 1
        self.on_held(fresh)
        if slots:
            self._next += len(slots)
            self.of_tenant[slots[0].tenant] += len(slots)
            self._of_session.setdefault(session, set()).update(range(first, self._next))
            heapq.heappush(self._by_expiry, (expires, first, len(slots)))
        return first

    def renew(self, pin: Pin, expires: float) -> None:
        """Move a pin's end. The old heap entry stays and is passed over when it comes up."""
        pin.expires = expires
        heapq.heappush(self._by_expiry, (expires, pin.serial, 1))
        self._sweep()

    def unpin(self, pin: Pin) -> Slot:
        """End a pin; the slot may now be free of holds."""
        self.unpin_all([pin])
        return pin.slot

    def unpin_all(self, pins: Collection[Pin]) -> None:
        """End these pins, of one session."""
        free: list[Slot] = []
        for pin in pins:
            del self._pins[pin.serial]
            slot = pin.slot
            slot.pins -= 1
            if not (slot.pins or slot.windows):
                free.append(slot)
        self.on_unheld(free)
        if pins:
            one = next(iter(pins))
            session = one.session
            self.of_tenant[one.slot.tenant] -= len(pins)
            serials = self._of_session[session]
            serials.difference_update([pin.serial for pin in pins])
            if not serials:
                del self._of_session[session]
            self._sweep()

    def of_session(self, session: int) -> list[Pin]:
        return [self._pins[serial] for serial in self._of_session.get(session, ())]

    def expired(self, now: float) -> Iterator[Pin]:
        """Pins whose time is over; the caller unpins each before asking for the next."""
        while self._by_expiry and self._by_expiry[0][0] <= now:
            _, first, count = heapq.heappop(self._by_expiry)
            for serial in range(first, first + count):
                pin = self._pins.get(serial)
                if pin is not None and pin.expires <= now:
                    yield pin

    def check(self) -> None:
        held: dict[int, int] = {}
        for serial, pin in self._pins.items():
            assert pin.serial == serial and serial in self._of_session[pin.session]
            assert pin.generation == pin.slot.generation, "a pinned slot changed hands"
            held[id(pin.slot)] = held.get(id(pin.slot), 0) + 1
        for pin in self._pins.values():
            assert pin.slot.pins == held[id(pin.slot)], "a slot miscounts its pins"
        of_tenant = Counter(pin.slot.tenant for pin in self._pins.values())
        assert of_tenant == self.of_tenant, "a tenant's pins are miscounted"
        assert sum(map(len, self._of_session.values())) == len(self._pins)
        waiting = {
            (expires, serial)
            for expires, first, count in self._by_expiry
            for serial in range(first, first + count)
        }
        ends = {(pin.expires, serial) for serial, pin in self._pins.items()}
        assert ends <= waiting, "a pin that does not expire when it should"
        assert len(self._by_expiry) <= 2 * len(self._pins) + STALE_MAX, "stale ends pile up"

    def _sweep(self) -> None:
        """Forget the ends of closed and renewed pins once they outnumber those that count."""
        if len(self._by_expiry) > 2 * len(self._pins) + STALE_MAX:
            self._by_expiry = [(pin.expires, pin.serial, 1) for pin in self._pins.values()]
            heapq.heapify(self._by_expiry)
