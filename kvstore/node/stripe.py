"""One stripe's way here: from its holder, from a second one where that is late, and from the next
where one fails. Whoever is first wins, and what the other brings of the same is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from kvstore.errors import KVStoreError, Overloaded, SessionEnded, Unavailable
from kvstore.limits import FETCH_SECONDS_MAX
from kvstore.node.delivery import Deliveries, Wanted
from kvstore.node.peers import Peers, fails
from kvstore.telemetry import Telemetry
from kvstore.transfer.term import Term

log = logging.getLogger(__name__)

AT_ONCE_MAX = 2  # holders that are asked for the same


class StripeRun:
    """`run` it once, as a task."""

    def __init__(
        self, holders: list[str], wanted: Wanted, to: Deliveries, peers: Peers, counters: Telemetry
    ) -> None:
        self._left, self._wanted = deque(holders), wanted
        self._to, self._peers, self._counters = to, peers, counters
        self._asked: dict[asyncio.Task[None], str] = {}
        self._at_work: dict[str, Term] = {}  # of those asked, who has had its turn
        self.unreached: set[bytes] = set()  # keys that a holder neither gave nor lacks

    async def run(self, patience: float) -> None:
        """Bring what can be had, within a bounded time, whoever still waits for it. It waits for
        turns no longer than `patience`."""
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                while self._lacking() and (self._asked or self._left):
                    if not self._asked:
                        self._ask_next(patience)
                    await self._wait(patience)
        except TimeoutError:
            self.unreached.update(self._wanted.keys)
            for holder, term in self._at_work.items():  # whose turn did not come is not to blame
                if not term.waits:  # nor is one to which no thread of this node came
                    log.info("node %s was too slow", holder)
                    self._peers.failed(holder)
        finally:
            await self._give_up()

    def _lacking(self) -> bool:
        self._wanted = self._to.lacking(self._wanted)
        return bool(self._wanted.keys)

    def _ask_next(self, patience: float) -> None:
        holder = self._left.popleft()
        task = asyncio.create_task(self._bring(holder, self._wanted, patience))
        self._asked[task] = holder

    async def _wait(self, patience: float) -> None:
        """Until a holder is done, or is late and another is asked beside it."""
        more = bool(self._left) and len(self._asked) < AT_ONCE_MAX
        late = max(
            self._to.pace.late_after(one, self._wanted.size_bytes) for one in self._asked.values()
        )
        done, _ = await asyncio.wait(
            self._asked, timeout=late if more else None, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            del self._asked[task]
            task.result()
        if not done and self._lacking():
            self._counters.add("hedged_blocks", len(self._wanted.keys))
            self._ask_next(patience)

    async def _bring(self, holder: str, wanted: Wanted, patience: float) -> None:
        try:
            async with self._to.turn(holder, wanted, patience):
                self._at_work[holder] = term = Term()
                self.unreached.update(await self._to.bring(holder, wanted, term))
        except KVStoreError as error:
            log.info("node %s: %s", holder, error)
            if isinstance(error, Unavailable | Overloaded | SessionEnded):
                self.unreached.update(wanted.keys)
            if fails(error):
                self._peers.failed(holder)
        finally:
            self._at_work.pop(holder, None)

    async def _give_up(self) -> None:
        """Returns when nothing is moved any more."""
        tasks, self._asked = set(self._asked), {}
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks)
