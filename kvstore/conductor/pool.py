"""The nodes as the conductor knows them: who serves, who is suspect, and what each of them lists.

Who there is stands in the metadata, each record under its node's lease; what a node lists, it says
itself. A node whose lease is gone, or that was not heard of for a while, is suspect: it is named to
nobody, and what it listed is kept for a grace period, so that a stall of seconds does not empty the
index. While the metadata is away, those who are followed go on being named.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.conductor.follower import follow
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.table import Table
from kvstore.conductor.tracked import Tracked
from kvstore.config import OPEN, Credentials
from kvstore.core.carried import Carried
from kvstore.errors import KVStoreError
from kvstore.limits import FOLLOW_SILENCE_SECONDS, NODES_MAX, SUSPECT_SECONDS
from kvstore.metadata.protocol import Change, Entry, Kind, Metadata
from kvstore.metadata.records import BadRecord, NodeRecord
from kvstore.metadata.watching import watching

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
_RELIST_SECONDS = (0.1, 0.5)  # a pause of chance before the metadata is read anew


@dataclass(slots=True)
class Member:
    """A node that has, or lately had, a record in the metadata."""

    record: NodeRecord
    tracked: Tracked
    task: asyncio.Task[None]
    heard: float  # when it last said anything
    lapsed: float | None = None  # since when its lease is gone


class Pool:
    """Keeps the table by following whoever serves. `keep` is one task, for as long as it runs."""

    def __init__(
        self,
        metadata: Metadata,
        clock: Clock,
        dice: random.Random,
        credentials: Credentials = OPEN,
        carried: Callable[[str, Carried], None] = lambda node_id, one: None,
    ) -> None:
        """`carried` is told what each node's host carried."""
        self._metadata, self._clock, self._dice = metadata, clock, dice
        self._credentials, self._carried = credentials, carried
        self._members: dict[str, Member] = {}
        self._waiting: dict[str, Entry] = {}  # records of nodes that found no place
        self.table = Table(PoolIndex(dice.getrandbits(64) | 1))

    async def load(self) -> int:
        """Read who there is; the revision that shows. Raises `Unavailable`."""
        entries, revision = await self._metadata.list(NodeRecord.prefix)
        self._see_all(entries)
        return revision

    async def keep(self, revision: int) -> None:
        """Go by the metadata from a revision on, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:  # one that fails ends the other
                group.create_task(self._sweep())
                group.create_task(self._see_on(revision))
        finally:
            tasks = [member.task for member in self._members.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def named(self) -> Iterator[Member]:
        """Those that callers may be sent to."""
        since = self._clock.now() - FOLLOW_SILENCE_SECONDS
        for node_id, member in self._members.items():
            if member.lapsed is None and member.heard >= since and node_id in self.table:
                yield member

    def named_ids(self) -> list[str]:
        return [member.record.node_id for member in self.named()]

    def coming_ids(self) -> list[str]:
        """Of those that serve whoever is not named for want of what it lists: it is not away."""
        members = self._members.items()
        coming = [name for name, one in members if one.lapsed is None and name not in self.table]
        return [*coming, *self._waiting]

    @property
    def approximate(self) -> bool:
        """Whether some node serves of which not all is known: yet, or while it is silent."""
        serving = sum(one.lapsed is None for one in self._members.values())
        return bool(self._waiting) or len(self.named_ids()) < serving

    def check(self) -> None:
        self.table.check()
        assert max(len(self._members), len(self._waiting)) <= NODES_MAX
        assert not self._waiting.keys() & self._members.keys(), "it waits for the place it has"
        for node_id, member in self._members.items():
            assert node_id == member.record.node_id == member.tracked.node_id

    async def _see_on(self, revision: int) -> None:
        while True:
            try:
                await self._watch(revision)
            except KVStoreError as error:
                log.warning("the nodes' records are read anew: %s", error)
            revision = await self._loaded()

    async def _watch(self, revision: int) -> None:
        what = (self._metadata, NodeRecord.prefix, revision)
        async with watching(*what, self._dice) as changes:
            async for change in changes:
                self._see(change)

    async def _loaded(self) -> int:
        """The revision of a fresh reading, however long it takes."""
        while True:
            await self._clock.sleep(self._dice.uniform(*_RELIST_SECONDS))
            try:
                return await self.load()
            except KVStoreError:
                continue  # whoever renews this conductor's lease says so

    def _see_all(self, entries: Iterable[Entry]) -> None:
        self._waiting.clear()
        there = {entry.key.removeprefix(NodeRecord.prefix) for entry in entries}
        for entry in entries:
            self._serves(entry)
        for node_id in self._members.keys() - there:
            self._lapsed(node_id)

    def _see(self, change: Change) -> None:
        if change.kind is Kind.PUT:
            self._serves(change.entry)
        else:
            self._lapsed(change.entry.key.removeprefix(NodeRecord.prefix))

    def _serves(self, entry: Entry) -> None:
        try:
            record = NodeRecord.parse(entry)
        except BadRecord as error:
            log.warning("a node is not followed: %s", error)
            return
        member = self._members.get(record.node_id)
        if member is None:
            if len(self._members) >= NODES_MAX:
                if len(self._waiting) < NODES_MAX:
                    self._waiting[record.node_id] = entry
                log.warning("%s is not followed: %d are, the most", record.node_id, NODES_MAX)
                return
            tracked = Tracked(record.node_id, self.table, carried=self._carried)
            never = float("-inf")
            self._members[record.node_id] = Member(
                record, tracked, self._follow(tracked, record.address), never
            )
            return
        same = (record.address, record.epoch) == (member.record.address, member.record.epoch)
        back, member.record, member.lapsed = member.lapsed is not None, record, None
        if back or not same:  # it may be in a pause, or at the end of a stream that is dead
            member.task.cancel()
            member.task = self._follow(member.tracked, record.address)

    def _lapsed(self, node_id: str) -> None:
        self._waiting.pop(node_id, None)
        member = self._members.get(node_id)
        if member is not None and member.lapsed is None:
            log.warning("node %s is suspect: its lease is gone", node_id)
            member.lapsed = self._clock.now()

    def _follow(self, tracked: Tracked, address: str) -> asyncio.Task[None]:
        def heard() -> None:
            self._members[tracked.node_id].heard = self._clock.now()

        nature = (self._clock, self._dice)
        return asyncio.create_task(follow(tracked, address, heard, *nature, self._credentials))

    async def _sweep(self) -> None:
        """Forget those whose grace period is over, and make room where blocks went."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            last = self._clock.now() - SUSPECT_SECONDS
            for node_id, member in list(self._members.items()):
                if member.lapsed is not None and member.lapsed <= last:
                    log.warning("node %s is forgotten", node_id)
                    member.task.cancel()
                    del self._members[node_id]
                    self.table.forget(node_id)
            while self._waiting and len(self._members) < NODES_MAX:
                self._serves(self._waiting.pop(next(iter(self._waiting))))
            while self.table.sweep():
                await asyncio.sleep(0)  # others have their turn after each piece
