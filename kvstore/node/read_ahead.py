"""Blocks on their way to whoever opened them, before a READ asks for them: that saves it a round
trip, and this node a turn of its loop for each connection.

The caller names connections of its own session that are at rest. The node's loop holds the slots,
as it does for a READ, and tells each connection's thread of its share; the thread lets them go.
Whoever takes nothing is hung up on, as after a READ.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kvstore.core.lifecycle import Slot, Tier
from kvstore.errors import Invalid
from kvstore.layout import Fragment
from kvstore.limits import DATA_CALL_BLOCKS_MAX, DATA_SESSION_CONNECTIONS_MAX
from kvstore.node.moves import Held, Moves
from kvstore.node.sessions import Session


class Orders:
    """What one connection's thread is to send next: one run of blocks at a time."""

    def __init__(self, number: int) -> None:
        self.number = number  # by which its session knows the connection; never 0
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable while one waits
        self._lock = threading.Lock()
        self._next: Sequence[Held] = ()
        self._over = False

    @property
    def free(self) -> bool:
        """Whether none waits and more will be taken."""
        return not self._next and not self._over

    def tell(self, held: Sequence[Held]) -> bool:
        """Have these sent, at least one; False where nobody will."""
        with self._lock:
            if not self.free:
                return False
            self._next = held
            os.eventfd_write(self.bell, 1)
            return True

    def take(self) -> Sequence[Held]:
        """What is to be sent now; empty where nothing is."""
        with self._lock:
            held, self._next = self._next, ()
            if held:
                os.eventfd_read(self.bell)
            return held

    def close(self) -> Sequence[Held]:
        """Take no more; what was told and nobody will send."""
        with self._lock:
            self._over = True
            os.close(self.bell)
            held, self._next = self._next, ()
            return held


class ReadAhead:
    """The connections of all sessions, to be told what to send."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._orders: dict[tuple[Session, int], Orders] = {}
        self._numbers = itertools.count(1)

    @contextmanager
    def connection(self, loop: asyncio.AbstractEventLoop, session: Session) -> Iterator[Orders]:
        """One more connection, from its thread, until the end of the block."""
        orders = Orders(next(self._numbers))
        self._orders[session, orders.number] = orders
        try:
            yield orders
        finally:
            del self._orders[session, orders.number]
            left = orders.close()
            with suppress(RuntimeError):  # the loop has ended, and with it all that is held
                loop.call_soon_threadsafe(self._moves.let_go, left)

    def check(self, numbers: Sequence[int]) -> None:
        """Raise `Invalid` for what names no connections of a session."""
        most = DATA_SESSION_CONNECTIONS_MAX
        if not 0 < len(numbers) <= most or len(set(numbers)) < len(numbers):
            raise Invalid(
                f"read_ahead.connections {list(numbers)}: 1..{most} different ones are wanted, "
                "each by the number that its WELCOME said"
            )

    def send(
        self,
        session: Session,
        numbers: Sequence[int],
        slots: Sequence[Slot | None],
        fragment: Fragment,
    ) -> int:
        """Send a fragment of the leading slots that are there and sealed; how many are under way.

        None where a connection is gone or has something waiting. On the node's loop, in the turn
        in which the session pinned the slots.
        """
        orders = [self._orders.get((session, number)) for number in numbers]
        sealed = list(_leading(slots[:DATA_CALL_BLOCKS_MAX]))
        if not sealed or not all(one is not None and one.free for one in orders):
            return 0
        held, first = self._moves.sealed(sealed, fragment), 0
        for one, size in zip(orders, shares(len(held), len(orders)), strict=True):
            share = held[first : first + size]
            first += size
            if share and (one is None or not one.tell(share)):
                self._moves.let_go(share)  # it ended this moment: the caller hears of that there
        return len(held)


def _leading(slots: Sequence[Slot | None]) -> Iterator[Slot]:
    for slot in slots:
        if slot is None or not slot.root or slot.tier is not Tier.DRAM:
            return
        yield slot


def shares(blocks: int, connections: int) -> list[int]:
    """How many of the blocks come on each: the first ones have one more where it must be."""
    each, more = divmod(blocks, connections)
    return [each + (i < more) for i in range(connections)]
