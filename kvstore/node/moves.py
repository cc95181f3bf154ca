"""Slots held while the node itself moves their bytes: to a reader elsewhere, or from a writer.

Who may move what is decided here, on the node's loop: the handle must be the session's own and for
this, its time not over, the slot in DRAM, the fragment within it, and a strip written once. A slot
that is held is nobody else's until it is let go, whatever becomes of pins and windows meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.windows import Window
from kvstore.errors import Denied, Lapsed, OutOfRange
from kvstore.layout import Fragment, SlotLayout
from kvstore.node.namespaces import LayoutOf
from kvstore.node.sessions import Session
from kvstore.node.store import Store
from kvstore.transfer.frames import Found, Status


@dataclass(frozen=True, slots=True)
class Held:
    """A slot that may be moved from or to, until it is let go."""

    slot: Slot
    layout: SlotLayout
    fragment: Fragment
    window: Window | None = None  # where bytes come in


class Moves:
    """What is being moved by the owner, for all sessions."""

    def __init__(self, store: Store, layout_of: LayoutOf) -> None:
        self._store, self._layout_of = store, layout_of

    def reading(
        self, session: Session, handles: Sequence[bytes], fragment: Fragment
    ) -> list[Held | Status]:
        held = self._reading_run(session, handles, fragment)
        return self._all(self._reading, session, handles, fragment) if held is None else held

    def sealed(self, slots: Sequence[Slot], fragment: Fragment) -> list[Held]:
        """Hold these, which a caller has pinned in this turn. The fragment is within them."""
        for slot in slots:
            assert slot.root, "the caller has looked"
            slot.moves += 1
        layouts = {owner: self._layout_of(owner) for owner in {slot.owner for slot in slots}}
        return [Held(slot, layouts[slot.owner], fragment) for slot in slots]

    def writing(
        self, session: Session, handles: Sequence[bytes], fragment: Fragment
    ) -> list[Held | Status]:
        self._store.stirred(session)
        held = self._writing_run(session, handles, fragment)
        return self._all(self._writing, session, handles, fragment) if held is None else held

    def look(
        self, session: Session, handles: Sequence[bytes], fragment: Fragment
    ) -> list[tuple[Found, int]]:
        """What each slot is now, and how many leading layers of the fragment are written."""
        pins = self._store.claims.run_of_pins(session, handles)
        slots = [pin.slot for pin in pins or ()]
        layout = self._layout_of_all(slots, fragment)
        if layout is not None:
            each = list(dict.fromkeys(slots))  # one that is pinned often is looked at once
            counts = self._store.blocks.heads.layers_written(each, layout, fragment)
            layers = dict(zip(each, counts, strict=True))
            return [(_found(slot), layers[slot]) for slot in slots]
        seen: dict[Slot, tuple[Found, int]] = {}
        return [self._look(session, handle, fragment, seen) for handle in handles]

    def let_go(self, held: Sequence[Held | Status], session: Session | None = None) -> None:
        """Nobody moves these any more. Where bytes came in, `session` is whose they were."""
        if session is not None:
            self._store.stirred(session)
        for one in held:
            if isinstance(one, Held):
                if one.window is not None:
                    one.window.moved(one.fragment)
                self._store.blocks.let_go(one.slot)

    # Blocks that one call opened or reserved, and nothing wrong with any: all at once. Else each is
    # looked at by itself, and has an answer of its own.

    def _reading_run(
        self, session: Session, handles: Sequence[bytes], fragment: Fragment
    ) -> list[Held | Status] | None:
        pins = self._store.claims.run_of_pins(session, handles)
        slots = [pin.slot for pin in pins or ()]
        layout = self._layout_of_all(slots, fragment)
        if layout is None or not all(slot.root and slot.tier is Tier.DRAM for slot in slots):
            return None
        for slot in slots:
            slot.moves += 1
        return [Held(slot, layout, fragment) for slot in slots]

    def _writing_run(
        self, session: Session, handles: Sequence[bytes], fragment: Fragment
    ) -> list[Held | Status] | None:
        windows = self._store.claims.run_of_windows(session, handles) or []
        slots = [window.slot for window in windows]
        layout = self._layout_of_all(slots, fragment)
        if layout is None or any(window.writing for window in windows):
            return None
        if any(slot.tier is not Tier.DRAM for slot in slots):
            return None
        if not all(one.covers(fragment) for one in {window.fragment for window in windows}):
            return None
        if not self._store.blocks.heads.none_written(slots, layout, fragment):
            return None
        for window in windows:
            window.slot.moves += 1
            window.writing += (fragment,)
        return [Held(window.slot, layout, fragment, window) for window in windows]

    def _layout_of_all(self, slots: Sequence[Slot], fragment: Fragment) -> SlotLayout | None:
        """Of slots of one owner, which have the fragment."""
        owners = {slot.owner for slot in slots}
        if len(owners) != 1:
            return None
        layout = self._layout_of(owners.pop())
        try:
            layout.check(fragment)
        except OutOfRange:
            return None
        return layout

    def _all(
        self,
        hold: Callable[[Session, bytes, Fragment], Held | Status],
        session: Session,
        handles: Sequence[bytes],
        fragment: Fragment,
    ) -> list[Held | Status]:
        held: list[Held | Status] = []
        try:
            for handle in handles:
                held.append(hold(session, handle, fragment))
        except BaseException:  # a mistake of ours holds nothing for ever
            self.let_go(held)
            raise
        return held

    def _reading(self, session: Session, handle: bytes, fragment: Fragment) -> Held | Status:
        try:
            slot = self._store.claims.pin(session, handle, "handle").slot
            layout = self._layout_of(slot.owner)
            layout.check(fragment)
        except (Denied, Lapsed, OutOfRange) as error:
            return _status(error)
        if slot.tier is not Tier.DRAM:
            return Status.REFUSED
        # Of a block that was given up what is written may be read, as by those who map it.
        if not slot.root and self._store.blocks.heads.unwritten(slot, layout, fragment) is not None:
            return Status.UNWRITTEN
        slot.moves += 1
        return Held(slot, layout, fragment)

    def _writing(self, session: Session, handle: bytes, fragment: Fragment) -> Held | Status:
        try:
            window = self._store.claims.window(session, handle, "handle")
            slot, layout = window.slot, window.layout
            layout.check(fragment)
        except (Denied, Lapsed, OutOfRange) as error:
            return _status(error)
        if slot.tier is not Tier.DRAM:
            return Status.REFUSED
        if not window.fragment.covers(fragment):
            return Status.OUT_OF_RANGE
        being = any(fragment.overlaps(one) for one in window.writing)
        if being or self._store.blocks.heads.written(slot, layout, fragment) is not None:
            return Status.WRITTEN
        slot.moves += 1
        window.writing += (fragment,)
        return Held(slot, layout, fragment, window)

    def _look(
        self,
        session: Session,
        handle: bytes,
        fragment: Fragment,
        seen: dict[Slot, tuple[Found, int]],
    ) -> tuple[Found, int]:
        """`seen`: what was said in this turn of slots that have the fragment."""
        try:
            slot = self._store.claims.pin(session, handle, "handle").slot
            layout = self._layout_of(slot.owner)
            layout.check(fragment)
        except (Denied, Lapsed, OutOfRange):
            return Found.GONE, 0
        if slot not in seen:
            (layers,) = self._store.blocks.heads.layers_written([slot], layout, fragment)
            seen[slot] = _found(slot), layers
        return seen[slot]


def _found(slot: Slot) -> Found:
    if slot.root:
        return Found.SEALED
    return Found.FILLING if slot.state is State.FILLING else Found.ENDED


def _status(error: Exception) -> Status:
    if isinstance(error, OutOfRange):
        return Status.OUT_OF_RANGE
    return Status.REFUSED if isinstance(error, Denied) else Status.LAPSED
