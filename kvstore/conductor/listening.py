"""How much of its time a conductor listens to the reports of one tenant: its messages are taken one
after the other, over however many streams they come, and after each the next waits for a while.

Whose messages are few and small notices nothing: each finds its tenant's turn come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from kvstore.clock import Clock

TENANT_SHARE = 0.3  # of the conductor's time, that the reports of one tenant take
PAUSE_SECONDS_MAX = 1.0  # however long one took: this process may have stood still meanwhile


@dataclass(slots=True)
class _Turn:
    """A tenant's next."""

    at: float = 0.0  # when it may be taken
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
                began = self._clock.now()
                try:
                    yield
                finally:
                    ended = self._clock.now()
                    took = ended - began
                    mine.at = ended + min(PAUSE_SECONDS_MAX, took / TENANT_SHARE - took)
        finally:
            mine.waiting -= 1

    def _forget(self) -> None:
        """Each call adds one at most and looks at two, so there are never many."""
        now = self._clock.now()
        for who in list(islice(self._turns, 2)):
            one = self._turns[who]
            if not one.waiting and one.at <= now and len(self._turns) > 1:
                del self._turns[who]

    def check(self) -> None:
        for one in self._turns.values():
            assert one.waiting or not one.lock.locked(), "a turn is nobody's"
