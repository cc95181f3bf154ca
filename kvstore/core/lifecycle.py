"""A block's life is one table. Whatever touches a slot moves it along `NEXT`, or not at all.

A FILLING slot is private to one writer group and readable only through its hand-off; a SEALED one
is readable by all and writable by none; a DOOMED one is out of the index and becomes EMPTY when the
last hold on its memory is gone: a reader's pin, or the window of a process that may still write.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvstore.errors import InvariantError


class State(enum.IntEnum):
    """The value is what stands in the slot's head in shared memory."""

    EMPTY = 0  # nobody's; may be given to a writer
    FILLING = 1  # one writer group's; readable only by the holder of its hand-off
    SEALED = 2  # root recorded; readable by all, writable by none
    DOOMED = 3  # unindexed; freed when its last hold leaves


NEXT = {
    State.EMPTY: {State.FILLING},
    State.FILLING: {State.SEALED, State.DOOMED},
    State.SEALED: {State.DOOMED},
    State.DOOMED: {State.EMPTY},
}


class Tier(enum.IntEnum):
    """What kind of memory a slot is a piece of."""

    DRAM = 0  # mapped by the host's engines; readers read here, but for those that reach HBM
    SSD = 1
    HBM = 2  # of a GPU; the host's engines on that GPU map it


_SSD = Tier.SSD  # a name of its own is found sooner

Owner = tuple[bytes, int]  # (namespace digest, group): whose slots a slab holds
NOBODY: Collection[bytes] = ()  # the children of every block that has none: one for all


@dataclass(eq=False, slots=True)
class Slot:
    """One use of a place for one block. `generation` rises whenever the place changes hands."""

    number: int  # no two of a tier have the same
    offset: int  # of the slot's head in the arena, bytes
    owner: Owner
    state: State = State.EMPTY
    generation: int = 0
    key: bytes = b""  # stored key
    parent: bytes = b""  # stored key of the block before; empty for the first
    after: bytes = b""  # of one that stands alone: of a held block that it makes room before
    tenant: str = ""
    tokens: int = 0
    short: bool = False  # of fewer tokens than its namespace's blocks have: the end of a prompt
    origin: int = 0  # what computed the bytes, as its writer says; 0 where it does not
    root: bytes = b""
    pins: int = 0
    windows: int = 0  # windows whose process may still write
    moves: int = 0  # between tiers, under way from or to here
    tier: Tier = Tier.DRAM
    twin: Slot | None = None  # the same block, of DRAM and SSD in the other one
    unproven: bool = False  # an earlier run's record vouches for it, and nobody has read it since
    listed: bool = False  # in the index, with every block before it
    children: Collection[bytes] = NOBODY  # stored keys of held blocks `behind` it, each once
    sleeping: int = 0  # blocks right behind that sleep: see kvstore.core.sleepers

    @property
    def behind(self) -> bytes:
        """Stored key of the block that goes after this one; empty where none has to."""
        return self.parent or self.after

    @property
    def family(self) -> int:
        """How many blocks the node has right behind this one; a leaf has none."""
        return len(self.children) + self.sleeping

    @property
    def lowest(self) -> Tier:
        """Where the block is lost with its place: on SSD, if it is there, here or as the twin."""
        return self.tier if self.twin is None else _SSD

    def move(self, state: State) -> None:
        if state not in NEXT[self.state]:
            raise InvariantError(f"slot {self.number}: {self.state.name} -> {state.name}")
        self.state = state

    def bears(self, key: bytes) -> None:
        """One more held block stands right behind this one."""
        if not self.children:
            self.children = (key,)  # most have one, and a set is four times as large
        elif isinstance(self.children, set):
            self.children.add(key)
        else:
            self.children = {*self.children, key}

    def loses(self, key: bytes) -> None:
        """One of those is held no more."""
        if isinstance(self.children, set):
            self.children.discard(key)
        elif key in self.children:
            self.children = NOBODY

    @property
    def held(self) -> bool:
        """Whether somebody may still read or write the memory."""
        return self.pins > 0 or self.windows > 0 or self.moves > 0

    def check(self) -> None:
        held = (self.pins, self.windows, self.moves)
        assert min(held) >= 0, "released more often than held"
        if self.twin is not None:
            assert self.twin.twin is self and self.twin.key == self.key, "twins of two blocks"
            assert self.state is self.twin.state is State.SEALED, "a twin that is not sealed"
            assert {self.tier, self.twin.tier} == {Tier.DRAM, Tier.SSD}, "twins in these, no others"
        if self.state is State.EMPTY:
            assert not self.held, "an empty slot is held"
            assert not self.listed, "an empty slot is listed"
        if self.state is State.FILLING:
            assert not self.root or self.tier is Tier.SSD, "a root before the seal"
        if self.state is State.SEALED:
            assert len(self.root) == 16, "sealed without a root"
            assert self.windows == 0, "sealed while a writer may still write"
        if self.listed:
            assert self.state is State.SEALED, "listed but not sealed"


def move_all(slots: Sequence[Slot], state: State) -> None:
    """`Slot.move` of each of these; where one may not, none has."""
    if not all(state in NEXT[one] for one in {slot.state for slot in slots}):
        for slot in slots:
            if state not in NEXT[slot.state]:
                slot.move(state)  # which says so
    for slot in slots:
        slot.state = state
