"""Callers of a small node who do whatever comes to their mind, and what must hold meanwhile."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State
from kvstore.errors import KVStoreError, Overloaded
from kvstore.layout import GENERATION_OFFSET, STATE_OFFSET, Fragment
from kvstore.memory.strips import spans
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session
from tests.node.rig import LARGE, SMALL, Rig, payload_of, prompt, triples

PROMPTS = [
    (place, prompt(place, 4 * blocks - 1, start))
    for place in (SMALL, LARGE)
    for blocks, start in ((6, 0), (4, 100), (2, 200))
]
PARTS = {
    SMALL: [Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)],
    LARGE: [Fragment(0, 2, 0, 1), Fragment(2, 1, 0, 1)],
}


@dataclass(eq=False)
class Writing:
    """A window as its writer knows it."""

    session: Session
    place: Place
    block: bytes
    slot: Slot
    generation: int
    fragment: Fragment
    handle: bytes
    hand_off: bytes
    written: bool = False


@dataclass(eq=False)
class Reading:
    """A pin as its reader knows it."""

    session: Session
    place: Place
    slot: Slot
    generation: int
    handle: bytes
    expires: float


@dataclass(eq=False)
class Sight:
    """A block as somebody saw it who holds nothing."""

    place: Place
    slot: Slot  # as it was then
    payload: bytes


class Life:
    """Callers of one node, and what each of them believes."""

    def __init__(self, seed: int) -> None:
        self.dice, self.rig = random.Random(seed), Rig(slabs=6)
        self.sessions: list[Session] = []
        self.stopped: list[Session] = []  # ended, but with a process that may still write
        self.writing: list[Writing] = []
        self.zombies: list[Writing] = []  # their windows
        self.reading: list[Reading] = []
        self.sights: deque[Sight] = deque(maxlen=20)
        self.hand_offs: list[tuple[Place, bytes, bytes]] = []
        self.seen: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        deeds = [
            *((self.begin, 8), (self.end, 3), (self.process_gone, 4), (self.zombie_writes, 5)),
            *((self.reserve, 18), (self.write, 40), (self.seal, 30), (self.abort, 4)),
            *((self.open, 14), (self.follow, 10), (self.close, 12), (self.renew, 5)),
            *((self.unpin, 5), (self.time, 5), (self.match, 12), (self.remove, 4)),
            *((self.damage, 1), (self.cheat, 3), (self.see, 8)),
        ]
        calls, weights = [deed for deed, _ in deeds], [weight for _, weight in deeds]
        for deed in self.dice.choices(calls, weights, k=steps):
            deed()
            self.look()

    def finish(self) -> None:
        """Everybody leaves: nothing is held any more."""
        for session in (*self.sessions, *self.stopped):
            self.rig.end(session)
            self.rig.process_gone(session)
        self.rig.store.check()
        assert not self.rig.blocks.doomed and not self.rig.blocks.filling
        assert len(self.rig.store.pins) == len(self.rig.store.windows) == 0

    def look(self) -> None:
        """What must hold after every step."""
        rig, now = self.rig, self.rig.clock.now()
        rig.store.check()
        for one in self.reading:
            if one.expires <= now:
                continue
            assert one.slot.generation == one.generation, "pinned memory changed hands"
            if one.slot.root:
                assert rig.read(one.slot, one.place) == payload_of(one.slot, one.place.layout)
        words = self.rig.arena.words
        for one in self.sights:
            at = one.slot.offset
            same = words[(at + GENERATION_OFFSET) // 8] == one.slot.generation
            if same and words.view(np.uint32)[(at + STATE_OFFSET) // 4] != State.EMPTY:
                assert rig.read(one.slot, one.place) == one.payload, (
                    "its head says that it is there"
                )
        for window in self.zombies:
            assert window.slot.generation == window.generation, "a stopped writer lost its memory"
            assert window.slot.state is State.DOOMED

    def attempt(self, call: Callable[[], object]) -> object:
        """The call's result, or its error, after making sure that a refusal changed nothing."""
        before = self.rig.all_there_is()
        try:
            return call()
        except KVStoreError as error:
            assert self.rig.all_there_is() == before, f"{error} changed something"
            self.seen[type(error).__name__] += 1
            return error

    # Sessions

    def begin(self) -> None:
        if len(self.sessions) < 5:
            tenant = self.dice.choice(["default", "default", "other"])
            self.sessions.append(self.rig.session(tenant, mapped=self.dice.random() < 0.5))

    def someone(self) -> Session:
        if not self.sessions:
            self.sessions.append(self.rig.session())
        return self.dice.choice(self.sessions)

    def end(self) -> None:
        session = self.someone()
        self.sessions.remove(session)
        self.rig.end(session)
        self.reading = [one for one in self.reading if one.session is not session]
        ours = [one for one in self.writing if one.session is session]
        self.writing = [one for one in self.writing if one.session is not session]
        if session.mappings:
            self.stopped.append(session)
            self.zombies += ours  # what it neither sealed nor aborted, it may still write
            self.seen["zombies"] += len(ours)

    def process_gone(self) -> None:
        if self.stopped and self.dice.random() < 0.5:
            session = self.stopped.pop(0)
            self.zombies = [one for one in self.zombies if one.session is not session]
            self.rig.process_gone(session)

    def zombie_writes(self) -> None:
        for one in self.zombies:
            for _, at, size in spans(one.slot, one.place.layout, one.fragment):
                self.rig.arena.bytes[at : at + size] ^= 0x55

    # Writing

    def reserve(self) -> None:
        session, (place, blocks) = self.someone(), self.dice.choice(PROMPTS)
        first = self.dice.choice([0, 0, self.dice.randrange(len(blocks))])
        chain = triples(blocks, first, self.dice.randint(first + 1, len(blocks)))
        fragment, group = place.layout.whole, ""
        if self.dice.random() < 0.3:
            fragment, group = self.dice.choice(PARTS[place]), self.dice.choice(["g", "h"])
        call = lambda: self.rig.store.reserve(session, place, chain, fragment, group)  # noqa: E731
        if isinstance(found := self.attempt(call), KVStoreError):
            return
        for (block, _, tokens), one in zip(chain, found, strict=True):  # type: ignore[call-overload]
            key = self.rig.store.keys(session.tenant, place, [block])[0]
            assert (one is None) == (self.rig.blocks.index.get(key) is not None) or group
            if one is not None:
                assert (one.slot.key, one.slot.tokens) == (key, tokens)
                at = (one.slot, one.slot.generation, fragment)
                hand_off = self.rig.hand_off(one)
                self.writing.append(Writing(session, place, block, *at, one.handle, hand_off))
                self.hand_offs = [*self.hand_offs[-30:], (place, block, hand_off)]

    def write(self) -> None:
        if todo := [one for one in self.writing if not one.written]:
            for one in self.dice.sample(todo, min(3, len(todo))):
                claims, mine = self.rig.store.claims, (one.session, one.handle, "handle")
                window = self.attempt(lambda ask=claims.window, mine=mine: ask(*mine))
                alive = not isinstance(window, KVStoreError)
                if alive:
                    assert one.slot.generation == one.generation
                    self.rig.write(one.slot, one.place, one.fragment)
                one.written = True

    def mine(self) -> tuple[Session, list[Writing]]:
        session = self.dice.choice(self.writing).session if self.writing else self.someone()
        ours = [one for one in self.writing if one.session is session]
        return session, self.dice.sample(ours, min(len(ours), self.dice.randint(1, 4)))

    def seal(self) -> None:
        session, some = self.mine()
        if self.dice.random() < 0.9:
            some = [one for one in some if one.written and one.slot.state is State.FILLING]
        keys = [self.rig.store.keys(session.tenant, w.place, [w.block])[0] for w in some]
        held = {key for key in keys if key in self.rig.blocks.index}
        results = self.attempt(lambda: self.rig.store.seal(session, [one.handle for one in some]))
        if isinstance(results, KVStoreError):
            return
        for key, one, result in zip(keys, some, results, strict=True):  # type: ignore[call-overload]
            self.seen[result] += 1
            self.writing.remove(one)
            if result != "waiting":
                assert result == ("existed" if key in held else "sealed"), "the first seal wins"
                assert (self.rig.blocks.index.held(key) is one.slot) == (result == "sealed")
                held.add(key)

    def abort(self) -> None:
        session, some = self.mine()
        self.rig.store.abort(session, [one.handle for one in some])
        self.writing = [one for one in self.writing if one not in some]

    # Reading

    def opened(self, session: Session, place: Place, found: list[Opened | Miss], ms: int) -> None:
        for one in found:
            self.seen[one if isinstance(one, Miss) else one.slot.state.name] += 1
            if isinstance(one, Opened):
                at = (one.slot, one.slot.generation, one.handle)
                expires = self.rig.clock.now() + ms / 1e3
                self.reading.append(Reading(session, place, *at, expires))

    def open(self) -> None:
        session, (place, blocks) = self.someone(), self.dice.choice(PROMPTS)
        ms = self.dice.choice([100, 5_000])
        some = blocks.hashes[: self.dice.randint(1, 3)]
        try:
            found = self.rig.store.open(session, place, some, (), ms)
        except Overloaded:  # its tenant holds too much
            self.seen["refused pins"] += 1
            return
        self.opened(session, place, found, ms)

    def see(self) -> None:
        session, (place, blocks) = self.someone(), self.dice.choice(PROMPTS)
        pins, keys = (
            len(self.rig.store.pins),
            self.rig.store.keys(session.tenant, place, blocks.hashes),
        )
        for one in self.rig.store.look(place, keys):
            if isinstance(one, Opened):
                assert one.slot.state is State.SEALED and not one.handle
                payload = payload_of(one.slot, place.layout)
                self.sights.append(Sight(place, replace(one.slot), payload))
        assert len(self.rig.store.pins) == pins

    def follow(self) -> None:
        if self.hand_offs:
            session, (place, block, hand_off) = self.someone(), self.dice.choice(self.hand_offs)
            call = lambda: self.rig.store.open(session, place, [block], [hand_off], 5_000)  # noqa: E731
            found = self.attempt(call)
            if not isinstance(found, KVStoreError):
                self.opened(session, place, found, 5_000)  # type: ignore[arg-type]

    def close(self) -> None:
        if self.reading:
            one = self.reading.pop(self.dice.randrange(len(self.reading)))
            held, _ = self.rig.store.readers.close(one.session, [one.handle])
            assert held == [one.expires > self.rig.clock.now()]

    def renew(self) -> None:
        if self.reading:
            one, now = self.dice.choice(self.reading), self.rig.clock.now()
            got = self.attempt(
                lambda: self.rig.store.readers.renew(one.session, [one.handle], 3_000)
            )
            assert isinstance(got, KVStoreError) == (one.expires <= now)
            if got is None:
                one.expires = now + 3.0

    def unpin(self) -> None:
        if self.reading:
            one, now = self.reading.pop(), self.rig.clock.now()
            got = self.attempt(lambda: self.rig.store.readers.unpin(one.session, [one.handle]))
            assert isinstance(got, KVStoreError) == (one.expires <= now)

    def match(self) -> None:
        tenant, (place, blocks) = self.someone().tenant, self.dice.choice(PROMPTS)
        found, why = self.rig.store.match(place, self.rig.store.keys(tenant, place, blocks.hashes))
        listed = [one is None for one in self.rig.store.exists(tenant, place, blocks.hashes)]
        assert listed == sorted(listed, reverse=True), "a hit behind a hole"
        assert found == sum(listed) and (why is None) == (found == len(blocks))
        for key in self.rig.store.keys(tenant, place, blocks.hashes[:found]):
            slot = self.rig.blocks.index.get(key)
            assert slot is not None
            assert self.rig.read(slot, place) == payload_of(slot, place.layout)

    # Whatever else may happen

    def time(self) -> None:
        self.rig.pass_time(self.dice.uniform(0, 1.5))
        if self.dice.random() < 0.7:
            self.rig.store.expire()

    def remove(self) -> None:
        place, blocks = self.dice.choice(PROMPTS)
        self.rig.store.remove(
            self.rig.store.keys(self.someone().tenant, place, self.dice.sample(blocks.hashes, 1))
        )

    def damage(self) -> None:
        free = [slot for slot in self.rig.blocks.index if not slot.held]
        if free:
            slot = self.dice.choice(free)
            place = SMALL if slot.owner == SMALL.owner else LARGE
            others = set(self.rig.blocks.index) - {slot}
            self.rig.flip(slot, place)
            assert not self.rig.blocks.examine(slot, place.layout)
            assert set(self.rig.blocks.index) == others, "more or less than the damaged block went"
            self.seen["damaged"] += 1

    def cheat(self) -> None:
        """Use what is somebody else's, or made up."""
        cheat = self.rig.session()
        given = [one.handle for one in self.writing] + [one.handle for one in self.reading]
        handle, store = self.dice.choice(given or [b"none"]), self.rig.store
        calls: list[Callable[[Session, list[bytes]], object]]
        calls = [store.seal, store.abort, store.readers.close, store.readers.unpin]
        for call in calls:
            assert isinstance(self.attempt(partial(call, cheat, [handle])), KVStoreError)
        self.rig.end(cheat)
