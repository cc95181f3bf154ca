"""The other nodes of the pool: who they are, and a link to each that this node fetches from.

A peer that fails rests for a while, in which nobody waits for it; what it then costs to ask it is a
miss, never an error. One that has no connection left for a tenant rests for that tenant. Links that
nobody uses are ended. Of those that are wanted at once a few begin at a time: each takes of this
loop's time, and that of others would count as its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

from kvstore.clock import Clock
from kvstore.config import Credentials
from kvstore.errors import Crowded, KVStoreError, Overloaded, Unavailable
from kvstore.limits import NODES_MAX
from kvstore.metadata.records import NodeRecord
from kvstore.metadata.roster import Roster
from kvstore.node.contacts import Contacts
from kvstore.node.handles import node_tag
from kvstore.node.link import Link
from kvstore.node.ucx_way import UcxWays

log = logging.getLogger(__name__)

BEGIN_SECONDS = 0.5  # that a session may take to begin, data connection and all
BEGINNING_MAX = 16  # sessions that begin at once: over TLS each takes some 12 ms of this process
TURN_SECONDS = 2.0  # that one waits to be one of them
REST_SECONDS_MIN, REST_SECONDS_MAX = 0.5, 4.0  # who is well again is asked soon
IDLE_SECONDS = 60.0  # a link that is not used for so long is ended
_RETRY_MS = 500

Where = tuple[str, str]  # node id, tenant


@dataclass(frozen=True, slots=True)
class Rest:
    """How long a peer that failed is left alone."""

    until: float
    seconds: float

    @staticmethod
    def after(last: Rest | None, now: float) -> Rest:
        """Twice as long as the last one, if that is not long ago."""
        recent = last is not None and now < last.until + REST_SECONDS_MAX
        seconds = min(2 * last.seconds, REST_SECONDS_MAX) if last and recent else REST_SECONDS_MIN
        return Rest(now + seconds, seconds)


class Peers:
    """Links to whoever else there is, made when they are first needed."""

    def __init__(
        self,
        node_id: str,
        roster: Roster[NodeRecord],
        clock: Clock,
        threads: Executor,
        greeters: Executor,
        credentials: Credentials,
        contacts: Contacts,
        ucx: UcxWays | None = None,
    ) -> None:
        self.node_id, self._roster, self._credentials = node_id, roster, credentials
        self._contacts, self._ucx = contacts, ucx
        self._clock, self._threads, self._greeters = clock, threads, greeters
        self._links: dict[Where, Link] = {}
        self._parting: dict[Where, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(BEGINNING_MAX)
        self._making = WeakValueDictionary[Where, asyncio.Lock]()  # while somebody has it
        self._resting: dict[str | Where, Rest] = {}  # for all tenants, or for one
        # Id and host of all there are or lately were, by what their handles begin with.
        self._lately: OrderedDict[bytes, tuple[str, str]] = OrderedDict()

    def known(self) -> list[NodeRecord]:
        """Those that may be asked now."""
        return [one for one in self._roster if self.may_ask(one.node_id)]

    def resting(self) -> list[NodeRecord]:
        """Those that are there, and may be asked again in a moment."""
        return [one for one in self._roster if self._rests(one.node_id)]

    def rests(self, node_id: str, epoch: int) -> bool:
        """Whether it is there, and is left alone for a moment."""
        record = self._roster.get(node_id)
        there = record is not None and record.epoch == epoch and node_id != self.node_id
        return there and self._rests(node_id)

    def addresses(self) -> list[str]:
        """Of all there are."""
        return [one.address for one in self._roster]

    def may_ask(self, node_id: str, epoch: int | None = None) -> bool:
        """Whether it is there, as this start of it, and not resting."""
        record = self._roster.get(node_id)
        if record is None or node_id == self.node_id or epoch not in (None, record.epoch):
            return False
        return not self._rests(node_id)

    def seen(self, one: NodeRecord) -> None:
        """It is there: remember how its handles begin, also once it is gone."""
        tag = node_tag(one.node_id)
        self._lately[tag] = one.node_id, _host(one)
        self._lately.move_to_end(tag)
        while len(self._lately) > 2 * NODES_MAX:
            oldest, whose = self._lately.popitem(last=False)
            if self._roster.get(whose[0]) is not None:  # no more than NODES_MAX are
                self._lately[oldest] = whose

    def by_tag(self, tag: bytes) -> str | None:
        """The other node whose handles begin so; it may be gone."""
        node_id, _ = self._lately.get(tag, (None, ""))
        return None if node_id == self.node_id else node_id

    def by_name(self, name: str) -> str | None:
        """The other node of this id, or on this host where it is the only one."""
        if self._roster.get(name) is not None:
            return name if name != self.node_id else None
        there = [one.node_id for one in self._roster if _host(one) == name]
        return there[0] if len(there) == 1 and there[0] != self.node_id else None

    def gone(self, name: str) -> bool:
        """Whether other nodes alone had this id, or were on this host, and none is there now."""
        if self._roster.get(name) is not None:
            return False  # as it mostly is: followers ask this many times a second
        had = {whose[0] for whose in self._lately.values() if name in whose}
        there = any(name in (one.node_id, _host(one)) for one in self._roster)
        return bool(had) and self.node_id not in had and not there

    async def link(self, node_id: str, tenant: str) -> Link:
        """A live session with a peer. Raises `KVStoreError`, and at once while it rests."""
        where = (node_id, tenant)
        making = self._making.setdefault(where, asyncio.Lock())
        async with making:
            record, link = self._there(where), self._links.get(where)
            same = link is not None and (link.epoch, link.address) == (record.epoch, record.address)
            if link is not None and same and link.alive:
                return link
            if link is not None:
                await self._parted(where)
                self._part(where, link)
            async with self._turn():
                return await self._begun(where, self._there(where))

    def _there(self, where: Where) -> NodeRecord:
        """The record of a peer that may be asked now. Raises `Unavailable`."""
        record = self._roster.get(where[0])
        if record is None or not self.may_ask(where[0]):
            raise Unavailable(f"node {where[0]} is not there, or failed a moment ago")
        if self._rests(where):
            why = "had no data connection left for this tenant a moment ago"
            raise Crowded(f"node {where[0]} {why}")
        return record

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Inside it a session may begin. `Overloaded` if no turn comes in time: no peer's fault."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            why = f"sessions with {BEGINNING_MAX} other nodes or tenants are beginning already"
            raise Overloaded(why, _RETRY_MS) from None
        try:
            yield
        finally:
            self._turns.release()

    def _part(self, where: Where, link: Link) -> None:
        """End it, which may take long, beside whoever wants another, and beside others that end."""
        if self._links.get(where) is link:
            del self._links[where]
            self._parting[where] = task = asyncio.create_task(_ended(link))
            task.add_done_callback(lambda _: self._parting.pop(where))

    async def _parted(self, where: Where) -> None:
        """Once none is parted with there: of those that end slowly there is one at a time."""
        if where in self._parting:
            await asyncio.wait([self._parting[where]])

    async def _begun(self, where: Where, record: NodeRecord) -> Link:
        label = f"node {self.node_id[:8]}"
        ucx = None if self._ucx is None else self._ucx.to(record)
        given = (label, self._threads, self._greeters, self._clock, self._credentials, ucx)
        link = Link(record, where[1], *given)
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                await link.begin()
        except (KVStoreError, TimeoutError) as error:
            await _ended(link)
            if isinstance(error, Crowded):
                self._rest(where)
            if not (isinstance(error, TimeoutError) or fails(error)):
                raise  # what it refuses one tenant is no failure of its own
            if link.session:  # it answers, and lets no data connection in
                self._contacts.refused(link, "tcp", error)
            self.failed(record.node_id)
            why = str(error) or f"it began no session within {BEGIN_SECONDS:g} s"
            raise Unavailable(f"node {record.address} cannot be used: {why}") from error
        except asyncio.CancelledError:
            await _ended(link)
            raise
        self._links[where] = link
        self._contacts.met(link)
        return link

    def failed(self, node_id: str) -> None:
        """It did not do what it was asked: it is left alone, for longer each time."""
        self._rest(node_id)

    def _rest(self, whom: str | Where) -> None:
        last, now = self._resting.get(whom), self._clock.now()
        if last is not None and now < last.until:
            return  # others were told the same at the same time
        self._resting[whom] = rest = Rest.after(last, now)
        log.info("node %s rests for %.1f s", whom, rest.seconds)

    def _rests(self, whom: str | Where) -> bool:
        rest = self._resting.get(whom)
        return rest is not None and rest.until > self._clock.now()

    async def keep(self) -> None:
        """End links that nobody uses, and forget who is gone, until cancelled."""
        while True:
            await self._clock.sleep(IDLE_SECONDS / 4)
            now = self._clock.now()
            for where, link in list(self._links.items()):
                idle = link.used < now - IDLE_SECONDS or not link.alive
                if idle and where not in self._parting:  # else it is looked at again
                    self._part(where, link)
            over = now - REST_SECONDS_MAX
            self._resting = {name: one for name, one in self._resting.items() if one.until > over}

    async def close(self) -> None:
        links, self._links = self._links, {}
        await asyncio.gather(*map(_ended, links.values()), *self._parting.values())


def fails(error: BaseException) -> bool:
    """Whether a peer that was asked for something and raised this does not do its part."""
    return isinstance(error, Unavailable) and not isinstance(error, Crowded)


def _host(record: NodeRecord) -> str:
    return record.address.rpartition(":")[0]


async def _ended(link: Link) -> None:
    with suppress(KVStoreError):
        await link.close()
