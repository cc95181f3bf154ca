"""What a call may name by the thousand is looked up a part at a time, with the loop's turns for
others between.

16,384 hashes take 15 to 30 ms, in which no other caller is answered, nor another node, which waits
for half a second at most. Of all calls that are longer than a part one goes on at a time, the
tenants in turn: so whoever calls beside them waits for one part, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from kvstore.block import Miss
from kvstore.core.lifecycle import Tier
from kvstore.limits import RPC_PART_KEYS
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session, Sessions
from kvstore.node.store import Store
from kvstore.rpc.entrance import Entrance

T = TypeVar("T")
R = TypeVar("R")


class LongCalls:
    """Asks one store; what fits one part is asked at once, as a plain call."""

    def __init__(self, store: Store, sessions: Sessions) -> None:
        self._store, self._sessions, self._turns = store, sessions, Entrance(1)

    async def over(
        self, tenant: str, named: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]
    ) -> Sequence[R]:
        """What `work` says of all of these. It is asked about the last part first, as it uses the
        last of each first: a prompt's start is to stay the longest."""
        if len(named) <= RPC_PART_KEYS:
            return work(named)
        some = [named[one] for one in reversed(parts(len(named)))]
        found = await self._in_turn(tenant, some, work)
        return list(chain.from_iterable(reversed(found)))

    async def keys(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """The store's keys of these."""
        return await self.over(tenant, hashes, lambda some: self._store.keys(tenant, place, some))

    async def exists(self, tenant: str, place: Place, hashes: Sequence[bytes]) -> list[Miss | None]:
        store = self._store
        return [*await self.over(tenant, hashes, lambda some: store.exists(tenant, place, some))]

    def why_not(self, key: bytes) -> Miss:
        """Why a block cannot be had that was looked for elsewhere, too."""
        found = self._store.blocks.find(key)
        return found if isinstance(found, Miss) else Miss.LATE  # it came just now

    async def remove(self, tenant: str, keys: Sequence[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Those of these that somebody reads, and those that were here and are dropped."""
        store = self._store
        both = await self.over(
            tenant, keys, lambda some: [(store.being_read(some), store.remove(some))]
        )
        return set().union(*(one for one, _ in both)), set().union(*(one for _, one in both))

    async def open(
        self,
        session: Session,
        place: Place,
        keys: Sequence[bytes],
        hand_offs: Sequence[bytes] = (),
        pin_ms: int = 0,
        writer_group: str = "",
        reach: Tier = Tier.DRAM,
    ) -> Sequence[Opened | Miss]:
        """`Store.open_stored` of these: all that are there are pinned that its tenant may hold, or
        the call is refused and none is. The first part is pinned first, as of a prompt only its
        start is of use; none counts as used before all are pinned, and then the last part does."""
        pinned: list[list[Opened | Miss]] = []

        def pin(part: slice) -> None:
            self._sessions.find(session.token, session.tenant)  # else nobody would end its pins
            told = (hand_offs[part], pin_ms, writer_group, reach)
            pinned.append(self._store.pin_stored(session, place, keys[part], *told))

        def tell(some: list[Opened | Miss]) -> None:
            self._sessions.find(session.token, session.tenant)
            self._store.readers.told(some)

        try:
            await self._in_turn(session.tenant, parts(len(keys)), pin)
            await self._in_turn(session.tenant, pinned[::-1], tell)
            return list(chain.from_iterable(pinned))
        except BaseException:
            opened = [one for one in chain.from_iterable(pinned) if isinstance(one, Opened)]
            self._store.readers.close(session, [one.handle for one in opened])
            raise

    async def _in_turn(self, tenant: str, parts: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """What `work` says of each, in this order; of one that is alone at once."""
        if len(parts) == 1:
            return [work(parts[0])]
        found: list[R] = []
        for part in parts:
            await self._turns.enter(tenant)
            try:
                found.append(work(part))
                await asyncio.sleep(0)
            finally:
                self._turns.leave(tenant)
        return found


def parts(count: int) -> list[slice]:
    """Of so many; one, where there is nothing."""
    firsts = range(0, max(count, 1), RPC_PART_KEYS)
    return [slice(first, first + RPC_PART_KEYS) for first in firsts]
