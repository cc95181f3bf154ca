"""Handles as the store uses them: made for a window, a pin or a hand-off, and taken back as one.

Whoever redeems a handle learns whose it is, what it was for, and whether its time is over; nothing
is changed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot, State
from kvstore.core.pins import Pin, Pins
from kvstore.core.slabs import Slabs
from kvstore.core.windows import Run, Window, Windows
from kvstore.errors import (
    Invalid,
    Lapsed,
    NotYours,
    Overloaded,
    PinExpired,
    WindowClosed,
    WrongTenant,
)
from kvstore.limits import HAND_OFF_MS_MAX, HOLDS_MAX, RPC_PART_KEYS
from kvstore.node.handles import Claim, Direction, Handles
from kvstore.node.sessions import Session

_HOLDS_RETRY_MS = 1_000


class Claims:
    """The handles of one store."""

    def __init__(
        self, handles: Handles, clock: Clock, windows: Windows, pins: Pins, slabs: Slabs
    ) -> None:
        self._handles, self._clock = handles, clock
        self._windows, self._pins, self._slabs = windows, pins, slabs

    def for_windows(self, session: Session, first: int, count: int) -> list[bytes]:
        """Of windows with consecutive serials."""
        return self._handles.seal_all(Claim(first, Direction.WRITE, session.serial, 0.0), count)

    def for_pins(self, session: Session, first: int, count: int, expires: float) -> list[bytes]:
        """Of pins with consecutive serials, that end together."""
        return self._handles.seal_all(Claim(first, Direction.READ, session.serial, expires), count)

    def for_hand_off(self, slot: Slot) -> bytes:
        expires = self._clock.now() + HAND_OFF_MS_MAX / 1e3
        claim = Claim(slot.offset, Direction.HAND_OFF, 0, expires, slot.generation)
        return self._handles.seal(claim)

    def own(
        self, session: Session, handles: Sequence[bytes], direction: Direction
    ) -> Sequence[int]:
        """The serials of a session's own handles, be what they claim over or not."""
        serials: list[int] = []
        for first in range(0, len(handles), RPC_PART_KEYS):  # parts are given out apart
            some = handles[first : first + RPC_PART_KEYS]
            run = self._handles.open_run(some, direction)
            if run is not None and run.session == session.serial:
                serials += range(run.serial, run.serial + len(some))
            else:
                where = enumerate(some, first)
                own = self._own
                serials += [own(session, h, direction, f"handles[{i}]").serial for i, h in where]
        return serials

    def window(self, session: Session, handle: bytes, where: str) -> Window:
        """The open window of a handle; says whose it is, or that it is over."""
        return self._open(self._own(session, handle, Direction.WRITE, where).serial, where)

    def windows(self, session: Session, handles: Sequence[bytes]) -> list[Window]:
        """The open windows of handles, each of another."""
        serials = self.own(session, handles, Direction.WRITE)
        found = self._open_ones(serials)
        if len(found) < len(serials):
            found = [self._open(serial, f"handles[{i}]") for i, serial in enumerate(serials)]
        if len(set(serials)) < len(serials):
            raise Invalid("a handle stands twice in one call")
        return found

    def whole_run(self, session: Session, handles: Sequence[bytes]) -> Run | None:
        """What one call opened, if these are the handles that it gave out and nobody has asked for
        one of its windows by itself; None where that is to be done."""
        run = self._handles.open_run(handles, Direction.WRITE)
        if run is None or run.session != session.serial:
            return None
        return self._windows.run(run.serial, len(handles))

    def run_of_windows(self, session: Session, handles: Sequence[bytes]) -> list[Window] | None:
        """The open windows of handles that one call gave out; None where each is to be asked for
        by itself, to have it or what became of it."""
        run = self._handles.open_run(handles, Direction.WRITE)
        if run is None or run.session != session.serial:
            return None
        found = self._open_ones(range(run.serial, run.serial + len(handles)))
        return found if len(found) == len(handles) else None

    def run_of_pins(self, session: Session, handles: Sequence[bytes]) -> list[Pin] | None:
        """The same of live pins."""
        run = self._handles.open_run(handles, Direction.READ)
        if run is None or run.session != session.serial:
            return None
        get, now = self._pins.get, self._clock.now()
        serials = range(run.serial, run.serial + len(handles))
        found = [pin for one in serials if (pin := get(one)) is not None and pin.expires > now]
        return found if len(found) == len(handles) else None

    def pin(self, session: Session, handle: bytes, where: str) -> Pin:
        """The live pin of a handle; `PinExpired` says since when it is over, if that is known."""
        claim = self._own(session, handle, Direction.READ, where)
        pin = self._pins.get(claim.serial)
        now = self._clock.now()
        if pin is not None and pin.expires > now:
            return pin
        if pin is not None:
            late = round(1e3 * (now - pin.expires))
            over = f"expired {late} ms ago by this node's clock"
        elif claim.expires > now:
            raise Lapsed(f"{where} was closed before")
        else:  # since when is not known any more: its time may have been moved
            over = "was closed before, or expired by this node's clock"
        raise PinExpired(f"{where} {over}: open the block again")

    def handed_off(self, session: Session, handle: bytes, where: str) -> Slot | None:
        """The slot of a hand-off; None when it was given up or is over, or is of a node that nobody
        here has heard of yet, and the key must do."""
        if self._handles.astray(handle):
            return None
        claim = self._handles.open(handle, Direction.HAND_OFF, where)
        slot = self._slabs.at(claim.serial)
        if slot is None or slot.generation != claim.generation or claim.expires < self._clock.now():
            return None
        if slot.tenant != session.tenant:
            raise WrongTenant(f"{where} belongs to another tenant")
        return slot if slot.state in (State.FILLING, State.SEALED) else None

    def _open_ones(self, serials: Sequence[int]) -> list[Window]:
        """Those of the windows that are open."""
        get, filling = self._windows.get, State.FILLING
        return [
            window
            for serial in serials
            if (window := get(serial)) is not None
            and not window.sealed
            and window.slot.state is filling
        ]

    def _open(self, serial: int, where: str) -> Window:
        window = self._windows.get(serial)
        if window is None or window.sealed:
            raise WindowClosed(f"{where} was sealed, aborted, or stood still for too long")
        if window.slot.state is not State.FILLING:
            raise WindowClosed(
                f"{where}: another writer of its group gave the block up, or a purge took it"
            )
        return window

    def _own(self, session: Session, handle: bytes, direction: Direction, where: str) -> Claim:
        claim = self._handles.open(handle, direction, where)
        if claim.session != session.serial:
            whose = "reader" if direction is Direction.READ else "writer"
            raise NotYours(f"{where} belongs to another session; only its own {whose} may use it")
        return claim


def check_holds(holds: Pins | Windows, tenant: str, more: int) -> None:
    """Raise `Overloaded` where one call's handles would pass what a node gives out, or what one
    tenant has of that: three times as many as are left to the others."""
    mine, left = holds.of_tenant[tenant], HOLDS_MAX - len(holds) - more
    if more and mine + more > 3 * left:
        what = "pins" if isinstance(holds, Pins) else "write windows"
        raise Overloaded(
            f"{mine} {what} of {tenant} are open, of {len(holds)} in all; {more} more pass the "
            f"{HOLDS_MAX} that a node gives out, of which no tenant takes all",
            _HOLDS_RETRY_MS,
        )
