"""The records below one prefix, as they are now: kept by what the metadata tells, and now and then
read anew.

While the metadata is away the roster stays as it was. A record that cannot be read is left out, and
said so once. Whoever keeps something by the records is told of each that is another than it was, so
that what becomes of many costs no more than these many.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from kvstore.clock import Clock
from kvstore.errors import KVStoreError
from kvstore.limits import NODES_MAX
from kvstore.metadata.protocol import Entry, Kind, Metadata
from kvstore.metadata.records import (
    BadRecord,
    ConductorRecord,
    NodeRecord,
    QuarantineRecord,
    TenantRecord,
    TokenRecord,
)
from kvstore.metadata.watching import watching

log = logging.getLogger(__name__)

R = TypeVar("R", NodeRecord, ConductorRecord, TenantRecord, TokenRecord, QuarantineRecord)

_RELIST_SECONDS = (0.1, 0.5)  # a pause of chance: after an outage not all ask in one moment
_TOLD = 256  # changes between two turns of others


class Roster(Generic[R]):
    """At most `most` records of one kind, by key. `came` is told each record that is new or another
    than it was, `went` that one is there no more."""

    def __init__(
        self,
        metadata: Metadata,
        kind: type[R],
        clock: Clock,
        dice: random.Random,
        most: int = NODES_MAX,
        came: Callable[[R], None] = lambda _: None,
        went: Callable[[], None] = lambda: None,
    ) -> None:
        self._metadata, self._clock, self._dice = metadata, clock, dice
        self._most, self._went = most, went
        self._came: Callable[[R], None] = came
        self._kind: type[R] = kind
        self._records: dict[str, R] = {}
        self._entries: dict[str, Entry] = {}  # that were read, also those that are no records
        self._left_out: set[str] = set()  # keys of those that found no place

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: str) -> R | None:
        """The record of this name, if there is one now."""
        return self._records.get(self._kind.prefix + name)

    def forget(self, name: str) -> None:
        """The caller has deleted it; the metadata will say so too."""
        self._entries.pop(self._kind.prefix + name, None)
        self._records.pop(self._kind.prefix + name, None)

    async def load(self) -> int:
        """Read all there are; the revision that shows. Raises `Unavailable`."""
        entries, revision = await self._metadata.list(self._kind.prefix)
        there = {entry.key for entry in entries}
        for key in (self._entries.keys() | self._left_out) - there:
            self._delete(key)
        for entry in entries:
            if self._entries.get(entry.key) != entry:
                self._put(entry)
        return revision

    async def keep(self) -> None:
        """Read and watch until cancelled."""
        while True:
            try:
                revision, told = await self.load(), 0
                what = (self._metadata, self._kind.prefix, revision)
                async with watching(*what, self._dice) as changes:
                    async for change in changes:
                        if change.kind is Kind.PUT:
                            self._put(change.entry)
                        else:
                            self._delete(change.entry.key)
                        if self._left_out and len(self._records) < self._most:
                            break  # whoever was left out is found by reading anew
                        told += 1
                        if told % _TOLD == 0:  # whole batches come without a wait between two
                            await asyncio.sleep(0)
            except KVStoreError as error:
                log.info("%s is read anew: %s", self._kind.prefix, error)
            await self._clock.sleep(self._dice.uniform(*_RELIST_SECONDS))

    def _put(self, entry: Entry) -> None:
        if entry.key not in self._records and len(self._records) >= self._most:
            if entry.key not in self._left_out:
                log.warning("%s is passed over: there are %d already", entry.key, self._most)
            self._left_out.add(entry.key)
            return
        try:
            record = self._kind.parse(entry)
        except BadRecord as error:
            log.warning("a record is passed over: %s", error)
            self._delete(entry.key)
        else:
            self._left_out.discard(entry.key)
            self._records[entry.key] = record
            self._came(record)
        self._entries[entry.key] = entry

    def _delete(self, key: str) -> None:
        self._entries.pop(key, None)
        self._left_out.discard(key)
        if self._records.pop(key, None) is not None:
            self._went()
