"""How much of its time a conductor listens to the reports of one tenant: its messages are taken one
after the other, over however many streams they come, and after each the next waits for a while.

Whose messages are few and small notices nothing: each finds its tenant's turn come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from kvstore.clock import Clock

TENANT_SHARE = 0.3  # of the conductor's time, that the reports of one tenant take
CREDIT_SECONDS = 0.005  # of its share that a tenant may have left when it speaks
CONTENDED_SECONDS = 2.0  # since the last message of another tenant: engines say one a second
PAUSE_SECONDS_MAX = 1.0  # however long one took: this process may have stood still meanwhile


@dataclass(slots=True)
class _Turn:
    """A tenant's next."""

    at: float = 0.0  # when it may be taken
    ended: float = -math.inf  # when the last one was
    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # lets in who came first


class Listening:
    """To all tenants. Those whose turn has come, and of whom nobody waits, are forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns: dict[str, _Turn] = {}  # who came last stands last

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Inside it a message of a tenant is taken, and no other of that tenant's."""
        mine = self._turns.pop(tenant, None) or _Turn()
        self._turns[tenant] = mine
        mine.waiting += 1
        try:
            self._forget()
            async with mine.lock:
                if (left := mine.at - self._clock.now()) > 0:
                    await self._clock.sleep(left)
                began, before = self._clock.now(), mine.at
                try:
                    yield
                finally:
                    ended = self._clock.now()
                    took = ended - began
                    mine.at = mine.ended = ended
                    if self._others(mine):
                        # From when it might have begun: what a loop oversleeps is made up for.
                        due = max(before, began - CREDIT_SECONDS) + took / TENANT_SHARE
                        mine.at = min(due, ended + PAUSE_SECONDS_MAX)
        finally:
            mine.waiting -= 1

    def _others(self, mine: _Turn) -> bool:
        """Whether another tenant has lately said something, too: else nobody is kept waiting."""
        last = islice(reversed(self._turns.values()), 2)
        other = next((one for one in last if one is not mine), None)
        return other is not None and other.ended > mine.ended - CONTENDED_SECONDS

    def _forget(self) -> None:
        """Each call adds one at most and looks at two, so there are never many."""
        now = self._clock.now()
        for who in list(islice(self._turns, 2)):
            one = self._turns[who]
            over = max(one.at, one.ended + CONTENDED_SECONDS) <= now
            if not one.waiting and over and len(self._turns) > 1:
                del self._turns[who]

    def check(self) -> None:
        for one in self._turns.values():
            assert one.waiting or not one.lock.locked(), "a turn is nobody's"
