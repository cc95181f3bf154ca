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
from kvstore.core.windows import Window, Windows
from kvstore.errors import Lapsed, NotYours, PinExpired, WindowClosed, WrongTenant
from kvstore.limits import HAND_OFF_MS_MAX
from kvstore.node.handles import Claim, Direction, Handles
from kvstore.node.sessions import Session


class Claims:
    """The handles of one store."""

    def __init__(
        self, handles: Handles, clock: Clock, windows: Windows, pins: Pins, slabs: Slabs
    ) -> None:
        self._handles, self._clock = handles, clock
        self._windows, self._pins, self._slabs = windows, pins, slabs

    def for_window(self, window: Window) -> bytes:
        at = (window.serial, window.slot.offset, window.generation)
        return self._handles.seal(Claim(*at, Direction.WRITE, window.session, 0.0))

    def for_pin(self, pin: Pin) -> bytes:
        at = (pin.serial, pin.slot.offset, pin.generation)
        return self._handles.seal(Claim(*at, Direction.READ, pin.session, pin.expires))

    def for_hand_off(self, slot: Slot) -> bytes:
        expires = self._clock.now() + HAND_OFF_MS_MAX / 1e3
        claim = Claim(0, slot.offset, slot.generation, Direction.HAND_OFF, 0, expires)
        return self._handles.seal(claim)

    def own(self, session: Session, handles: Sequence[bytes], direction: Direction) -> list[Claim]:
        """The claims of a session's own handles, be what they claim over or not."""
        return [self._own(session, h, direction, f"handles[{i}]") for i, h in enumerate(handles)]

    def window(self, session: Session, handle: bytes, where: str) -> Window:
        """The open window of a handle; says whose it is, or that it is over."""
        claim = self._own(session, handle, Direction.WRITE, where)
        window = self._windows.get(claim.serial)
        if window is None or window.sealed:
            raise WindowClosed(f"{where} was sealed or aborted before")
        if window.slot.state is not State.FILLING:
            raise WindowClosed(f"{where}: the block was given up by another writer of its group")
        return window

    def pin(self, session: Session, handle: bytes, where: str) -> Pin:
        """The live pin of a handle; `PinExpired` says since when it is over."""
        claim = self._own(session, handle, Direction.READ, where)
        pin = self._pins.get(claim.serial)
        now = self._clock.now()
        if pin is not None and pin.expires > now:
            return pin
        if pin is None and claim.expires > now:
            raise Lapsed(f"{where} was closed before")
        late = round(1e3 * (now - (pin.expires if pin else claim.expires)))
        raise PinExpired(
            f"{where} expired {late} ms ago by this node's clock: open the block again"
        )

    def handed_off(self, session: Session, handle: bytes, where: str) -> Slot | None:
        """The slot of a hand-off; None when it was given up or is over and the key must do."""
        claim = self._handles.open(handle, Direction.HAND_OFF, where)
        slot = self._slabs.at(claim.offset)
        if slot is None or slot.generation != claim.generation or claim.expires < self._clock.now():
            return None
        if slot.tenant != session.tenant:
            raise WrongTenant(f"{where} belongs to another tenant")
        return slot if slot.state in (State.FILLING, State.SEALED) else None

    def _own(self, session: Session, handle: bytes, direction: Direction, where: str) -> Claim:
        claim = self._handles.open(handle, direction, where)
        if claim.session != session.serial:
            whose = "reader" if direction is Direction.READ else "writer"
            raise NotYours(f"{where} belongs to another session; only its own {whose} may use it")
        return claim
