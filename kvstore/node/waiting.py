"""Calls that wait for room in a full pool: of each tenant first come, first served, and never past
their deadline.

Eviction makes room at once wherever it can. What it cannot take is held: pinned, being written, on
its way between the tiers. Every hold that ends lets the first of each line look again; nobody looks
in between. Few may wait, because each that does occupies one of the calls that a node serves at
once, and those that end holds must always get in.

Each tenant has a line of its own: who makes room for it, and its quota, are other than the next
one's, so where one finds none there may be plenty for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from kvstore.core.room import RETRY_MS
from kvstore.core.turns import Places
from kvstore.errors import Overloaded
from kvstore.limits import ROOM_SECONDS_MAX, ROOM_WAITERS_MAX
from kvstore.node.blocks import Blocks
from kvstore.node.wanted import Need

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types
T = TypeVar("T")

# For the refusal to reach the caller before its deadline does, on a busy machine too.
MARGIN_SECONDS, MARGIN_SHARE = 0.1, 0.2


class _Line:
    """Of one tenant's calls, the first of which waits for holds to end. The others look again where
    it moves: by then one of their group may be filling what they name."""

    def __init__(self) -> None:
        self.calls: list[object] = []  # in the order they came
        self.moved = asyncio.Event()  # set once, for whoever waits now

    def moves(self) -> None:
        if self.calls:
            self.moved.set()
            self.moved = asyncio.Event()


class Waiting:
    """The lines for one pool's memory."""

    def __init__(self, blocks: Blocks) -> None:
        # By tenant, while somebody waits; each is given on in the order it was asked for.
        self._lines = WeakValueDictionary[str, _Line]()
        self._let_go = asyncio.Event()
        self._places = Places(ROOM_WAITERS_MAX)
        blocks.on_unheld = self._let_go.set

    async def for_room(
        self, tenant: str, attempt: Callable[[], T], need: Callable[[], Need], seconds: float
    ) -> T:
        """What `attempt` gives as soon as it is not `Overloaded`; after `seconds` it raises that,
        and at once where it needs more than it could ever have.

        An attempt that fails must have changed nothing. It may find the world changed: it looks up
        again whatever it works on. Who needs no room passes the line: whoever is first there may
        wait for just what this one is to write.
        """
        full = Overloaded("other calls wait for room before this one", RETRY_MS)
        line = self._lines.setdefault(tenant, _Line())
        if not self._places.held(tenant) or need() is not Need.ROOM:
            try:
                found = attempt()
                line.moves()
                return found
            except Overloaded as refusal:
                full = refusal
        if seconds <= 0 or need() is Need.TOO_MUCH or not self._places.try_take(tenant):
            raise full
        me = object()
        line.calls.append(me)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    first, moved = line.calls[0] is me, line.moved
                    if first:
                        self._let_go.clear()
                    if first or need() is Need.NOTHING:
                        try:
                            return attempt()
                        except Overloaded as refusal:
                            full = refusal
                    await (self._let_go if first else moved).wait()
        except TimeoutError:
            waited = f"{full}; none came in {seconds:.2f} s"
            raise type(full)(waited, full.retry_after_ms) from None
        finally:
            line.calls.remove(me)
            line.moves()
            self._places.give_back(tenant)


def room_patience(context: Context) -> float:
    """Seconds that a call may wait for room."""
    left = context.time_remaining()
    if left is None:
        return ROOM_SECONDS_MAX
    margin = max(MARGIN_SECONDS, MARGIN_SHARE * left)
    return min(ROOM_SECONDS_MAX, float(left - margin))
