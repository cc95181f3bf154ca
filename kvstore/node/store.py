"""What a node does with blocks, as plain calls: every rule a caller can meet, no wire and no await.

Each call checks all it was given before it changes anything, so a refused call changes nothing.
Time comes in through the clock the store was built with; only the owner's clock ever counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import compress, groupby
from typing import NamedTuple

from kvstore.block import Miss, stored_keys
from kvstore.clock import Clock
from kvstore.core.forgone import Forgone
from kvstore.core.held import Held
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.pins import Pins
from kvstore.core.windows import Window, Windows
from kvstore.errors import (
    Draining,
    Incomplete,
    Invalid,
    Overloaded,
    Quarantined,
    WrongTenant,
)
from kvstore.failpoint import failpoint
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import HASH_BYTES, PARTNERS_SECONDS
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims, check_holds
from kvstore.node.handles import Direction, Handles
from kvstore.node.namespaces import Place
from kvstore.node.readable import Readable
from kvstore.node.readers import Opened, Readers
from kvstore.node.sessions import Session
from kvstore.node.wanted import Wants
from kvstore.node.writers import Writers
from kvstore.telemetry import Telemetry

NOBODYS = bytes(HASH_BYTES)  # a stored key that no block has
_DRAIN_RETRY_MS = 1_000


class Reserved(NamedTuple):
    """A write window on a slot and the handle that seals it."""

    slot: Slot
    handle: bytes


class Store:
    """The blocks of one node, for every tenant."""

    def __init__(
        self,
        blocks: Blocks,
        handles: Handles,
        clock: Clock,
        secrets: Mapping[str, bytes],  # live: tenants come
        counters: Telemetry,
        quarantined: Container[bytes] = (),
    ) -> None:
        self.blocks = blocks
        self.pins = Pins()
        self.windows = Windows()
        self.held = Held(blocks.slabs, secrets.keys(), self.pins, self.windows)
        self.draining = False
        self.quarantined = quarantined  # namespaces that nobody reads or writes
        self.claims = Claims(handles, clock, self.windows, self.pins, blocks.slabs)
        self.readers = Readers(blocks, self.pins, self.held, self.claims, clock, counters)
        self.wants = Wants(blocks, self.windows, self.held, self.keys)
        self.forgone = Forgone()
        self._readable = Readable(blocks, self.claims, self.windows, self.forgone)
        self._clock = clock
        self._secrets = secrets
        self._counters = counters
        self._writers = Writers(self.windows)

    def keys(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> list[bytes]:
        secret, (namespace, group) = self._secrets.get(tenant), place.owner
        if secret is None:
            raise WrongTenant(f"tenant {tenant!r} is not known here")
        return stored_keys(secret, namespace, group, hashes)

    @property
    def tenants(self) -> Collection[str]:
        """Whose blocks there can be."""
        return self._secrets.keys()

    # Looking

    def match(
        self, place: Place, keys: Sequence[bytes], last_tokens: int = 0
    ) -> tuple[int, Miss | None]:
        """Leading blocks of a chain that can be had, and why the next one cannot."""
        full = place.layout.block_tokens
        asked = full * len(keys) - (full - last_tokens if last_tokens else 0)
        self._counters.add("query_tokens", asked)
        if place.owner[0] in self.quarantined:
            return 0, Miss.QUARANTINED
        found = self.blocks.index.longest(keys)
        self.blocks.touch(keys[:found])
        self._counters.add("hit_tokens", min(asked, full * found))
        if found == len(keys):
            return found, None
        why = self.blocks.find(keys[found])
        assert isinstance(why, Miss), "the block after the longest prefix is listed"
        return found, why

    def found_elsewhere(
        self, place: Place, asked: int, found: int, more: int, last_tokens: int
    ) -> None:
        """Of what `match` just counted as not found, other nodes have so many blocks."""
        full = place.layout.block_tokens
        tokens = full * asked - (full - last_tokens if last_tokens else 0)
        gained = min(tokens, full * (found + more)) - min(tokens, full * found)
        self._counters.add("hit_tokens", gained)
        self._counters.add("peer_hit_tokens", gained)

    def exists(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> list[Miss | None]:
        if place.owner[0] in self.quarantined:
            return [Miss.QUARANTINED] * len(hashes)
        found = [self.blocks.find(key) for key in self.keys(tenant, place, hashes)]
        return [one if isinstance(one, Miss) else None for one in found]

    def remove(self, keys: Sequence[bytes]) -> set[bytes]:
        """Drop sealed blocks by stored key, deepest first; which of them were here. Readers that
        hold one keep their memory."""
        held = [self.blocks.index.held(key) for key in dict.fromkeys(reversed(keys))]
        slots = [slot for slot in held if slot is not None]
        removed = {slot.key for slot in slots}
        self.blocks.drop_all(slots, Miss.REMOVED)
        self._counters.add("removed_blocks", len(removed))
        return removed

    def being_read(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those whose blocks somebody has open: they may be on their way to any node."""
        found = map(self.blocks.index.peek, keys)
        return {slot.key for slot in found if slot is not None and slot.pins}

    def owned(self, tenant: str, place: Place, keys: Sequence[bytes]) -> list[bytes]:
        """The stored keys that another node names, and `NOBODYS` for each that is not of a block
        of this tenant in this place: whoever makes no keys from hashes proves nothing by them."""
        whose = (tenant, place.owner)
        found = map(self.blocks.index.peek, keys)
        return [
            NOBODYS if one is None or (one.tenant, one.owner) != whose else one.key for one in found
        ]

    # Writing

    def reserve(
        self,
        session: Session,
        place: Place,
        chain: Sequence[tuple[bytes, bytes, int]],
        fragment: Fragment,
        writer_group: str = "",
        origin: int = 0,
        reach: Tier = Tier.DRAM,
        after: bytes | None = None,
    ) -> list[Reserved | None]:
        """Write windows on (hash, parent hash, tokens) blocks; None where one is sealed already.

        `reach`: the highest tier that the caller can write to. `after`, where these stand alone:
        the hash of the block that the first comes after, and each of them after the one before it.
        """
        if self.draining:
            raise Draining("this node is draining: write to another", _DRAIN_RETRY_MS)
        if place.owner[0] in self.quarantined:
            raise Quarantined("this namespace gave wrong KV: `moonpool stat` says what")
        place.layout.check(fragment)
        tenant = session.tenant
        named = self.wants.named(tenant, place, chain, fragment, writer_group, after)
        keys, joined, wanted = named.keys, named.joined, named.wanted
        if len(set(keys)) < len(keys):
            raise Invalid("a hash stands twice in one call")
        check_holds(self.windows, tenant, len(wanted) + len(joined))
        near = session.numa_node if session.may_write else None  # who maps none of it is far anyway
        told = (named.spared, [origin] * len(wanted), reach, near)
        size, count = place.layout.slot_bytes, len(wanted)
        try:
            above = self.blocks.free_in_hbm(place.owner, tenant, size, count, reach)
            self.held.check_windows(tenant, size, count - above)
            taken = self.blocks.fill(place.owner, place.layout, wanted, tenant, *told)
        except Overloaded:
            self._counters.add("overloaded")
            raise
        if after is not None:
            comes_after = dict(zip(keys, [named.before, *keys[:-1]], strict=True))
            for slot in taken:
                slot.after = comes_after[slot.key]
        given: Sequence[Slot | None] = taken
        if len(taken) < len(keys):
            slots = {**joined, **{slot.key: slot for slot in taken}}
            given = [slots.get(key) for key in keys]
        self.stirred(session)
        granted = [slot for slot in given if slot is not None]
        groups = [(tenant, writer_group, one.key) for one in granted] if writer_group else ()
        self.forgone.goes_on(tenant, writer_group)
        first = self.windows.open_all(granted, session.serial, fragment, place.layout, groups)
        handles = iter(self.claims.for_windows(session, first, len(granted)))
        return [None if slot is None else Reserved(slot, next(handles)) for slot in given]

    def seal(self, session: Session, handles: Sequence[bytes]) -> list[str]:
        """Seal each window's fragment: 'sealed', 'waiting' for other members, or 'existed'."""
        run = self.claims.whole_run(session, handles)
        if run is not None:
            self._check_written(run.slots, run.layout, run.layout.whole, 0)
            self.windows.seal_run(run)
            sealed = self._make_readable(run.slots, run.layout)
            self._touch_all(sealed, run.slots)
            return ["sealed" if one else "existed" for one in sealed]
        windows = self.claims.windows(session, handles)
        at = 0
        for (layout, fragment), some in groupby(windows, lambda one: (one.layout, one.fragment)):
            slots = [window.slot for window in some]
            self._check_written(slots, layout, fragment, at)
            at += len(slots)
        return self._seal(windows)

    def abort(self, session: Session, handles: Sequence[bytes], writer_group: str = "") -> None:
        """Give blocks up. The memory is free once no member of the group may write it.

        `writer_group`: this group reserves nothing more."""
        if writer_group:
            self.forgone.add(session.tenant, writer_group)
        for serial in self.claims.own(session, handles, Direction.WRITE):
            window = self.windows.get(serial)
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
        keys = self.keys(session.tenant, place, hashes)
        return self.open_stored(session, place, keys, hand_offs, pin_ms, writer_group)

    def open_stored(
        self,
        session: Session,
        place: Place,
        keys: Sequence[bytes],
        hand_offs: Sequence[bytes] = (),
        pin_ms: int = 0,
        writer_group: str = "",
        reach: Tier = Tier.DRAM,
    ) -> list[Opened | Miss]:
        """The same by the stored keys that the caller has from `keys`, or from `owned`.

        `reach`: the highest tier that it can read from."""
        told = (hand_offs, pin_ms, writer_group, reach)
        return self.readers.told(self.pin_stored(session, place, keys, *told))

    def pin_stored(
        self,
        session: Session,
        place: Place,
        keys: Sequence[bytes],
        hand_offs: Sequence[bytes],
        pin_ms: int,
        writer_group: str,
        reach: Tier,
    ) -> list[Opened | Miss]:
        """The first half of that: what is pinned counts as used once `Readers.told` says so."""
        if place.owner[0] in self.quarantined:
            return [Miss.QUARANTINED] * len(keys)
        found = self._readable.named(session, keys, hand_offs, writer_group, reach)
        return self.readers.hold(session, found, pin_ms)

    def look(
        self, place: Place, keys: Sequence[bytes], reach: Tier = Tier.DRAM
    ) -> list[Opened | Miss]:
        """Where sealed blocks are, pinned for nobody: they may go at any time, and who reads them
        from mapped memory learns that from their heads."""
        if place.owner[0] in self.quarantined:
            return [Miss.QUARANTINED] * len(keys)
        return self.readers.seen(self._readable.sealed(keys, reach))

    def used(self, query_tokens: int, hit_tokens: int) -> None:
        """What an engine made of what it held: it asks often and uses once."""
        self._counters.add("query_tokens", query_tokens)
        self._counters.add("hit_tokens", hit_tokens)

    # Time and ends

    def expire(self) -> None:
        """End the pins whose time is over, and windows whose partners or writers never came."""
        now = self._clock.now()
        self.readers.expire()
        for window in self.windows.overdue(now - PARTNERS_SECONDS):
            self._give_up(window)
        for session in self._writers.still(now):
            self._counters.add("expired_windows", len(self.windows.of_session(session.serial)))
            self.gone(session)

    def stirred(self, session: Session) -> None:
        """Bytes of this session came in, or are about to."""
        self._writers.stirred(session, self._clock.now())

    def end(self, session: Session) -> None:
        """The session's stream is over: its pins end; its windows too, if it cannot write."""
        self.readers.end(session)
        for window in self.windows.of_session(session.serial):
            self._lose(window)
        if not session.may_write:
            self.gone(session)

    def gone(self, session: Session) -> None:
        """No process of the session can write any more: free what it held on to."""
        for window in self.windows.of_session(session.serial):
            self._lose(window)
            self._let_go(window)

    def expel(self, covers: Callable[[Slot], bool]) -> None:
        """End writers and pins of these slots. Mapped memory stays held while a process may write;
        a reader learns from the slot's head that it is no longer what it was."""
        for window in [one for one in self.windows if covers(one.slot)]:
            self._give_up(window)
        self.blocks.arriving.give_up(covers)
        self.readers.expel(covers)

    def check(self) -> None:
        for part in (self.blocks, self.pins, self.windows, self.held):
            part.check()
        slabs = [slab for one in self.blocks.in_memory for slab in one.occupied()]
        slots = [slot for slab in slabs for slot in slab.slots.values()]
        assert sum(slot.pins for slot in slots) == len(self.pins), "a slot held by no pin"
        assert sum(one.windows for one in slots) == self.windows.writing, "a slot held by no window"
        for slot in slots:
            if slot.state is State.FILLING and not slot.moves:
                assert self.windows.reserved(slot), "a filling slot that nobody will seal"

    def _seal(self, windows: Sequence[Window]) -> list[str]:
        whole = self.windows.seal_all(windows, self._clock.now())
        sealed: list[bool] = []  # of those that are whole
        for layout, some in groupby(compress(windows, whole), lambda one: one.layout):
            sealed += self._make_readable([window.slot for window in some], layout)
        self._touch_all(sealed, [window.slot for window in windows])
        first = iter(sealed)
        return [("sealed" if next(first) else "existed") if one else "waiting" for one in whole]

    def _check_written(
        self, slots: Sequence[Slot], layout: SlotLayout, fragment: Fragment, first: int
    ) -> None:
        """Raise `Incomplete` unless these, whose handles are the call's from `first` on, are."""
        missing = self.blocks.heads.first_unwritten(slots, layout, fragment)
        if missing is not None:
            which = f"handles[{first + missing[0]}]: {missing[1]}"
            raise Incomplete(f"{which} not written; the window is {fragment}")

    def _make_readable(self, slots: Sequence[Slot], layout: SlotLayout) -> list[bool]:
        """Seal whole blocks that nobody writes; False where another with its key was first."""
        failpoint("seal.before_index", len(slots))
        sealed = self.blocks.seal_all(slots, layout)
        failpoint("seal.after_index", len(slots))
        self.blocks.settle_all(slots)
        return sealed

    def _touch_all(self, sealed: Sequence[bool], slots: Sequence[Slot]) -> None:
        """Blocks of one call are used now, unless all came to be now, and so were."""
        if sum(sealed) < len(slots):
            # Where blocks stand alone only their order says which is of use without which.
            self.blocks.touch([slot.key for slot in slots])

    def _give_up(self, window: Window) -> None:
        """Doom the block, if this is the first of its group to let go."""
        self.windows.give_up(window)
        if window.slot.generation == window.generation and window.slot.state is State.FILLING:
            self.blocks.doom(window.slot)
            self._counters.add("aborted_blocks")
            self.blocks.settle(window.slot)

    def _lose(self, window: Window) -> None:
        """Its member is gone: without it its group makes nothing whole."""
        group = window.group
        if group is not None and self.windows.slot_of(group) is window.slot:
            self.forgone.add(*group[:2])  # once: it may begin anew by another session
        self._give_up(window)

    def _let_go(self, window: Window) -> None:
        if self.windows.get(window.serial) is not None:
            self.windows.close(window)
        self.blocks.settle(window.slot)
