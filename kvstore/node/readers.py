"""What readers hold: slots that are pinned for a session until it closes them, ends, or is late.

A pin keeps a slot's memory where it is and nothing else: the block may be dropped under it, and a
reader learns that from the slot's head. Only this node's clock says when a pin is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kvstore.block import Miss
from kvstore.clock import Clock
from kvstore.core.held import Held
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.pins import Pin, Pins
from kvstore.errors import Invalid
from kvstore.limits import PIN_MS_DEFAULT, PIN_MS_MAX, RPC_PART_KEYS
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims, check_holds
from kvstore.node.handles import Direction
from kvstore.node.sessions import Session
from kvstore.telemetry import Telemetry


class Opened(NamedTuple):
    """A slot and the handle that closes its pin; empty where it was only looked up."""

    slot: Slot
    handle: bytes


class Readers:
    """The pins of one node, as its sessions make and end them."""

    def __init__(
        self,
        blocks: Blocks,
        pins: Pins,
        held: Held,
        claims: Claims,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._blocks, self._pins, self._held, self._claims = blocks, pins, held, claims
        self._clock, self._counters = clock, counters

    @contextmanager
    def kept(self, keys: Sequence[bytes], reach: Tier) -> Iterator[None]:
        """Inside this, what a reader can read of these blocks is not evicted while it waits for the
        rest, or for its turn to pin them. `reach`: the highest tier that it can read from."""
        found, near = self._blocks.index.get_all(keys), (Tier.DRAM, reach)
        here = [slot for slot in found if slot is not None and slot.tier in near]
        if len(here) == len(found) and len(keys) <= RPC_PART_KEYS:
            here = []  # there is no rest, and all are pinned at once
        for slot in here:
            slot.moves += 1
        try:
            yield
        finally:
            for slot in here:
                slot.moves -= 1
            self._blocks.settle_all(here)

    def hold(
        self, session: Session, found: Sequence[Slot | Miss], pin_ms: int
    ) -> list[Opened | Miss]:
        """Pin what was found, up to what a tenant may hold. What is behind that is not refused: it
        has no room where it could be read. None is used until its caller is `told`."""
        expires = self._clock.now() + _seconds(pin_ms)
        hits = _slots(found)
        if beyond := self._held.beyond(session.tenant, hits):
            found = [Miss.NO_ROOM if one in beyond else one for one in found]
            hits = _slots(found)
        check_holds(self._pins, session.tenant, len(hits))
        first = self._pins.pin_all(hits, session.serial, expires)
        return _opened(found, hits, self._claims.for_pins(session, first, len(hits), expires))

    def seen(self, found: Sequence[Slot | Miss]) -> list[Opened | Miss]:
        """Pin nothing of what was found. It is used as what is held is, and counted so."""
        hits = _slots(found)
        return self.told(_opened(found, hits, [b""] * len(hits)))

    def told(self, opened: list[Opened | Miss]) -> list[Opened | Miss]:
        """Use what a caller hears that it has, and count it, and what it has not."""
        hits = [one.slot.key for one in opened if isinstance(one, Opened)]
        self._blocks.touch(hits)
        self._counters.add("open_hit_blocks", len(hits))
        if len(hits) < len(opened):
            for why, count in Counter(one for one in opened if isinstance(one, Miss)).items():
                if why is not Miss.QUARANTINED:  # nobody looked for those
                    self._counters.add("open_miss_blocks", count, label=why)
        return opened

    def close(
        self, session: Session, handles: Sequence[bytes]
    ) -> tuple[list[bool], list[Slot | None]]:
        """End pins; whether each still held, and the slots they held."""
        serials, now = self._claims.own(session, handles, Direction.READ), self._clock.now()
        live = {serial: pin for serial in serials if (pin := self._pins.get(serial)) is not None}
        self._unpin([*live.values()])
        pins = [live.pop(serial, None) for serial in serials]  # one that stands twice held once
        held = [pin is not None and pin.expires > now for pin in pins]
        return held, [None if pin is None else pin.slot for pin in pins]

    def renew(self, session: Session, handles: Sequence[bytes], pin_ms: int) -> None:
        expires = self._clock.now() + _seconds(pin_ms)
        for pin in self._live(session, handles):
            self._pins.renew(pin, expires)

    def unpin(self, session: Session, handles: Sequence[bytes]) -> None:
        pins = self._live(session, handles)
        if len({p.serial for p in pins}) < len(pins):
            raise Invalid("a handle stands twice in one call")
        self._unpin(pins)

    def expire(self) -> None:
        """End the pins whose time is over."""
        for pin in self._pins.expired(self._clock.now()):
            self._unpin([pin])
            self._counters.add("expired_pins")

    def end(self, session: Session) -> None:
        """The session is over, and so are its pins."""
        self._unpin(self._pins.of_session(session.serial))

    def expel(self, covers: Callable[[Slot], bool]) -> None:
        """End all pins of these slots."""
        for pin in [one for one in self._pins if covers(one.slot)]:
            self._unpin([pin])

    def _live(self, session: Session, handles: Sequence[bytes]) -> list[Pin]:
        return [self._claims.pin(session, h, f"handles[{i}]") for i, h in enumerate(handles)]

    def _unpin(self, pins: Collection[Pin]) -> None:
        """End pins of one session."""
        self._pins.unpin_all(pins)
        self._blocks.settle_all([pin.slot for pin in pins])


def _opened(
    found: Sequence[Slot | Miss], hits: Sequence[Slot], handles: Sequence[bytes]
) -> list[Opened | Miss]:
    if len(hits) == len(found):
        return list(map(Opened, hits, handles))
    each = iter(handles)
    return [one if isinstance(one, Miss) else Opened(one, next(each)) for one in found]


def _slots(found: Sequence[Slot | Miss]) -> list[Slot]:
    return [one for one in found if isinstance(one, Slot)]


def _seconds(pin_ms: int) -> float:
    if pin_ms > PIN_MS_MAX:
        raise Invalid(f"pin_ms {pin_ms}: at most {PIN_MS_MAX}")
    return (pin_ms or PIN_MS_DEFAULT) / 1e3
