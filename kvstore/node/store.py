"""What a node does with blocks, as plain calls: every rule a caller can meet, no wire and no await.

Each call checks all it was given before it changes anything, so a refused call changes nothing.
Time comes in through the clock the store was built with; only the owner's clock ever counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass

from kvstore.block import Miss, stored_key
from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.pins import Pin, Pins
from kvstore.core.windows import Window, Windows
from kvstore.errors import (
    Draining,
    Incomplete,
    Invalid,
    Overloaded,
    Quarantined,
)
from kvstore.failpoint import failpoint
from kvstore.layout import Fragment
from kvstore.limits import HOLDS_MAX, PARTNERS_SECONDS, PIN_MS_DEFAULT, PIN_MS_MAX
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims
from kvstore.node.handles import Direction, Handles
from kvstore.node.namespaces import Place
from kvstore.node.sessions import Session
from kvstore.telemetry import Counters

_DRAIN_RETRY_MS = 1_000
_HOLDS_RETRY_MS = 1_000


@dataclass(frozen=True, slots=True)
class Opened:
    """A pinned slot and the handle that closes the pin."""

    slot: Slot
    handle: bytes


@dataclass(frozen=True, slots=True)
class Reserved:
    """A write window on a slot, and the hand-off that lets a reader follow it."""

    slot: Slot
    handle: bytes
    hand_off: bytes


class Store:
    """The blocks of one node, for every tenant."""

    def __init__(
        self,
        blocks: Blocks,
        handles: Handles,
        clock: Clock,
        secrets: dict[str, bytes],
        counters: Counters,
        quarantined: Container[bytes] = (),
    ) -> None:
        self.blocks = blocks
        self.pins = Pins()
        self.windows = Windows()
        self.draining = False
        self.quarantined = quarantined  # namespaces that nobody reads or writes
        self.claims = Claims(handles, clock, self.windows, self.pins, blocks.slabs)
        self._clock = clock
        self._secrets = secrets
        self._counters = counters
        self._group_names = 0

    def keys(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> list[bytes]:
        secret, (namespace, group) = self._secrets[tenant], place.owner
        return [stored_key(secret, namespace, group, one) for one in hashes]

    @property
    def tenants(self) -> Collection[str]:
        """Whose blocks there can be."""
        return self._secrets.keys()

    # Looking

    def match(
        self, tenant: str, place: Place, hashes: Sequence[bytes], last_tokens: int = 0
    ) -> tuple[int, Miss | None]:
        """Leading blocks of a chain that can be had, and why the next one cannot."""
        if place.owner[0] in self.quarantined:
            return 0, Miss.QUARANTINED
        keys = self.keys(tenant, place, hashes)
        found = self.blocks.index.longest(keys)
        self.blocks.touch(keys[:found])
        full = place.layout.block_tokens
        asked = full * len(keys) - (full - last_tokens if last_tokens else 0)
        self._counters.add("query_tokens", asked)
        self._counters.add("hit_tokens", min(asked, full * found))
        if found == len(keys):
            return found, None
        why = self.blocks.find(keys[found])
        assert isinstance(why, Miss), "the block after the longest prefix is listed"
        self._counters.add("match_miss", reason=why)
        return found, why

    def exists(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> list[Miss | None]:
        if place.owner[0] in self.quarantined:
            return [Miss.QUARANTINED] * len(hashes)
        found = [self.blocks.find(key) for key in self.keys(tenant, place, hashes)]
        return [one if isinstance(one, Miss) else None for one in found]

    def remove(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> int:
        """Drop sealed blocks, deepest first. Readers that hold one keep their memory."""
        removed = 0
        for key in reversed(self.keys(tenant, place, hashes)):
            slot = self.blocks.index.held(key)
            if slot is not None:
                self.blocks.drop(slot, Miss.REMOVED)
                removed += 1
        self._counters.add("removed_blocks", removed)
        return removed

    # Writing

    def reserve(
        self,
        session: Session,
        place: Place,
        chain: Sequence[tuple[bytes, bytes, int]],
        fragment: Fragment,
        writer_group: str = "",
        origin: int = 0,
    ) -> list[Reserved | None]:
        """Write windows on (hash, parent hash, tokens) blocks; None where one is sealed already."""
        if self.draining:
            raise Draining("this node is draining: write to another", _DRAIN_RETRY_MS)
        if place.owner[0] in self.quarantined:
            raise Quarantined("this namespace gave wrong KV: `moonpool stat` says what")
        place.layout.check(fragment)
        tenant = session.tenant
        if not writer_group:
            self._group_names += 1
            writer_group = f"\0{self._group_names}"  # private: no caller can name it
        wanted, joined = [], {}
        keys = self.keys(tenant, place, [block for block, _, _ in chain])
        parents = self.keys(tenant, place, [parent for _, parent, _ in chain if parent])
        behind = iter(parents)
        keyed = [
            (key, next(behind) if parent else b"", tokens)
            for key, (_, parent, tokens) in zip(keys, chain, strict=True)
        ]
        for key, parent, tokens in keyed:
            group = (tenant, writer_group, key)
            slot = self.windows.slot_of(group)
            if slot is not None:
                if slot.tokens != tokens:
                    raise Invalid(
                        f"tokens {tokens}: this writer group fills a block of {slot.tokens}"
                    )
                if slot.parent != parent:
                    raise Invalid("this writer group fills the block behind another parent")
                self.windows.check_free(group, fragment)
                joined[key] = slot
            elif self.blocks.index.get(key) is None and key not in joined:
                wanted.append((key, parent, tokens))
        if len({key for key, _, _ in keyed}) < len(keyed):
            raise Invalid("a hash stands twice in one call")
        _check_holds("write windows", len(self.windows), len(wanted) + len(joined))
        # Not evicted for these: what the caller is told exists, and what stands before them.
        spared = {one for key, parent, _ in keyed for one in (key, parent)}
        spared -= {key for key, _, _ in wanted}
        taken = self.blocks.fill(place.owner, place.layout, wanted, tenant, spared, origin)
        slots = joined | {slot.key: slot for slot in taken}
        reserved: list[Reserved | None] = []
        for key, _, _ in keyed:
            slot = slots.get(key)
            if slot is None:
                reserved.append(None)
                continue
            group = (tenant, writer_group, key)
            window = self.windows.open(slot, session.serial, fragment, place.layout, group)
            reserved.append(
                Reserved(slot, self.claims.for_window(window), self.claims.for_hand_off(slot))
            )
        return reserved

    def seal(self, session: Session, handles: Sequence[bytes]) -> list[str]:
        """Seal each window's fragment: 'sealed', 'waiting' for other members, or 'existed'."""
        windows = [self.claims.window(session, h, f"handles[{i}]") for i, h in enumerate(handles)]
        if len({w.serial for w in windows}) < len(windows):
            raise Invalid("a handle stands twice in one call")
        for i, w in enumerate(windows):
            missing = self.blocks.heads.unwritten(w.slot, w.layout, w.fragment)
            if missing is not None:
                raise Incomplete(f"handles[{i}]: {missing} not written; the window is {w.fragment}")
        sealed = [self._seal(window) for window in windows]
        # Where blocks stand alone only their order says which is of use without which.
        self.blocks.touch([window.slot.key for window in windows])
        return sealed

    def abort(self, session: Session, handles: Sequence[bytes]) -> None:
        """Give blocks up. The memory is free once no member of the group may write it."""
        for claim in self.claims.own(session, handles, Direction.WRITE):
            window = self.windows.get(claim.serial)
            if window is not None:  # else it is over already: to abort twice is no mistake
                self._give_up(window)
                self._let_go(window)

    # Reading

    def open(
        self,
        session: Session,
        place: Place,
        hashes: Sequence[bytes],
        hand_offs: Sequence[bytes] = (),
        pin_ms: int = 0,
        writer_group: str = "",
    ) -> list[Opened | Miss]:
        """Pin blocks, by key or by what is still being filled: by its hand-off or its group."""
        expires = self._clock.now() + _pin_seconds(pin_ms)
        if place.owner[0] in self.quarantined:
            return [Miss.QUARANTINED] * len(hashes)
        keys = self.keys(session.tenant, place, hashes)
        followed = [
            self.claims.handed_off(session, h, f"hand_offs[{i}]") if h else None
            for i, h in enumerate(hand_offs)
        ] or [None] * len(keys)
        found: list[Slot | Miss] = [
            slot if slot is not None and slot.key == key else self._in_dram(key)
            for slot, key in zip(followed, keys, strict=True)
        ]
        if writer_group:
            for i, key in enumerate(keys):
                filling = self.windows.slot_of((session.tenant, writer_group, key))
                if isinstance(found[i], Miss) and filling is not None:
                    found[i] = filling
        hits = [one for one in found if isinstance(one, Slot)]
        _check_holds("pins", len(self.pins), len(hits))
        self.blocks.touch([slot.key for slot in hits])
        opened: list[Opened | Miss] = []
        for one in found:
            if isinstance(one, Miss):
                self._counters.add("open_miss_blocks", reason=one)
                opened.append(one)
                continue
            pin = self.pins.pin(one, session.serial, expires)
            opened.append(Opened(one, self.claims.for_pin(pin)))
        self._counters.add("open_hit_blocks", len(hits))
        return opened

    def close(
        self, session: Session, handles: Sequence[bytes]
    ) -> tuple[list[bool], list[Slot | None]]:
        """End pins; whether each still held, and the slots they held."""
        claims, now = self.claims.own(session, handles, Direction.READ), self._clock.now()
        held, slots = [], []
        for claim in claims:
            pin = self.pins.get(claim.serial)
            held.append(pin is not None and pin.expires > now)
            slots.append(pin.slot if pin is not None else None)
            if pin is not None:
                self._unpin(pin)
        return held, slots

    def renew(self, session: Session, handles: Sequence[bytes], pin_ms: int) -> None:
        expires = self._clock.now() + _pin_seconds(pin_ms)
        for pin in [self.claims.pin(session, h, f"handles[{i}]") for i, h in enumerate(handles)]:
            self.pins.renew(pin, expires)

    def used(self, query_tokens: int, hit_tokens: int) -> None:
        """What an engine made of what it held: it asks often and uses once."""
        if hit_tokens > query_tokens:
            raise Invalid(f"hit_tokens {hit_tokens} of query_tokens {query_tokens}")
        self._counters.add("query_tokens", query_tokens)
        self._counters.add("hit_tokens", hit_tokens)

    def unpin(self, session: Session, handles: Sequence[bytes]) -> None:
        pins = [self.claims.pin(session, h, f"handles[{i}]") for i, h in enumerate(handles)]
        if len({p.serial for p in pins}) < len(pins):
            raise Invalid("a handle stands twice in one call")
        for pin in pins:
            self._unpin(pin)

    # Time and ends

    def expire(self) -> None:
        """End the pins whose time is over, and blocks whose other writers never came."""
        now = self._clock.now()
        for pin in self.pins.expired(now):
            self._unpin(pin)
            self._counters.add("expired_pins")
        for window in self.windows.overdue(now - PARTNERS_SECONDS):
            self._give_up(window)

    def end(self, session: Session) -> None:
        """The session's stream is over: its pins end; its windows too, if it cannot write."""
        for pin in self.pins.of_session(session.serial):
            self._unpin(pin)
        for window in self.windows.of_session(session.serial):
            self._give_up(window)
        if not session.may_write:
            self.gone(session)

    def gone(self, session: Session) -> None:
        """No process of the session can write any more: free what it held on to."""
        for window in self.windows.of_session(session.serial):
            self._give_up(window)
            self._let_go(window)

    def expel(self, covers: Callable[[Slot], bool]) -> None:
        """End writers and pins of these slots. Mapped memory stays held while a process may write;
        a reader learns from the slot's head that it is no longer what it was."""
        for window in [one for one in self.windows if covers(one.slot)]:
            self._give_up(window)
        for pin in [one for one in self.pins if covers(one.slot)]:
            self._unpin(pin)

    def check(self) -> None:
        self.blocks.check()
        self.pins.check()
        self.windows.check()
        slots = [slot for slab in self.blocks.slabs.occupied() for slot in slab.slots.values()]
        assert sum(slot.pins for slot in slots) == len(self.pins), "a slot held by no pin"
        writing = sum(slot.windows for slot in slots)
        assert writing == self.windows.writing, "a slot held by no window"
        for slot in slots:
            if slot.state is State.FILLING and not slot.moves:
                assert self.windows.reserved(slot), "a filling slot that nobody will seal"

    def _seal(self, window: Window) -> str:
        if not self.windows.seal(window, self._clock.now()):
            return "waiting"
        failpoint("seal.before_index")
        sealed = self.blocks.seal(window.slot, window.layout)
        failpoint("seal.after_index")
        self.blocks.settle(window.slot)
        return "sealed" if sealed else "existed"

    def _give_up(self, window: Window) -> None:
        """Doom the block, if this is the first of its group to let go."""
        self.windows.give_up(window)
        if window.slot.generation == window.generation and window.slot.state is State.FILLING:
            self.blocks.doom(window.slot)
            self._counters.add("aborted_blocks")
            self.blocks.settle(window.slot)

    def _let_go(self, window: Window) -> None:
        if self.windows.get(window.serial) is not None:
            self.windows.close(window)
        self.blocks.settle(window.slot)

    def _in_dram(self, key: bytes) -> Slot | Miss:
        """Readers read DRAM: a block that was not brought there in time is none."""
        found = self.blocks.find(key)
        return Miss.NO_ROOM if isinstance(found, Slot) and found.tier is Tier.SSD else found

    def _unpin(self, pin: Pin) -> None:
        self.blocks.settle(self.pins.unpin(pin))


def _check_holds(what: str, held: int, more: int) -> None:
    if held + more > HOLDS_MAX:
        raise Overloaded(f"{held} {what} are open; {more} more pass {HOLDS_MAX}", _HOLDS_RETRY_MS)


def _pin_seconds(pin_ms: int) -> float:
    if pin_ms > PIN_MS_MAX:
        raise Invalid(f"pin_ms {pin_ms}: at most {PIN_MS_MAX}")
    return (pin_ms or PIN_MS_DEFAULT) / 1e3
