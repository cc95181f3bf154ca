"""The records below one prefix, as they are now: read once, and kept by what the metadata tells.

While the metadata is away the roster stays as it was. A record that cannot be read is left out, and
said so once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import aclosing
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

log = logging.getLogger(__name__)

R = TypeVar("R", NodeRecord, ConductorRecord, TenantRecord, TokenRecord, QuarantineRecord)

_RELIST_SECONDS = (0.1, 0.5)  # a pause of chance: after an outage not all ask in one moment


class Roster(Generic[R]):
    """At most `most` records of one kind, by key; `changed` is called after each change."""

    def __init__(
        self,
        metadata: Metadata,
        kind: type[R],
        clock: Clock,
        dice: random.Random,
        most: int = NODES_MAX,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._metadata, self._clock, self._dice = metadata, clock, dice
        self._most, self._changed = most, changed
        self._kind: type[R] = kind
        self._records: dict[str, R] = {}
        self._left_out = False  # some, for want of a place

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: str) -> R | None:
        """The record of this name, if there is one now."""
        return self._records.get(self._kind.prefix + name)

    def forget(self, name: str) -> None:
        """The caller has deleted it; the metadata will say so too."""
        self._records.pop(self._kind.prefix + name, None)

    async def load(self) -> int:
        """Read all there are; the revision that shows. Raises `Unavailable`."""
        entries, revision = await self._metadata.list(self._kind.prefix)
        self._records.clear()
        self._left_out = False
        for entry in entries:
            self._put(entry)
        self._changed()
        return revision

    async def keep(self) -> None:
        """Read and watch until cancelled."""
        while True:
            try:
                revision = await self.load()
                async with aclosing(self._metadata.watch(self._kind.prefix, revision)) as changes:
                    async for change in changes:
                        if change.kind is Kind.PUT:
                            self._put(change.entry)
                        else:
                            self._records.pop(change.entry.key, None)
                        self._changed()
                        if self._left_out and len(self._records) < self._most:
                            break  # whoever was left out is found by reading anew
            except KVStoreError as error:
                log.info("%s is read anew: %s", self._kind.prefix, error)
            await self._clock.sleep(self._dice.uniform(*_RELIST_SECONDS))

    def _put(self, entry: Entry) -> None:
        if entry.key not in self._records and len(self._records) >= self._most:
            self._left_out = True
            log.warning("%s is passed over: there are %d already", entry.key, self._most)
            return
        try:
            self._records[entry.key] = self._kind.parse(entry)
        except BadRecord as error:
            log.warning("a record is passed over: %s", error)
            self._records.pop(entry.key, None)
