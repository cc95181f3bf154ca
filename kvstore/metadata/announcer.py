"""Keeps the record of a process that serves in the metadata under a lease: it is there while the
process runs, and goes when that does. The metadata may be away for any time; the process serves on.

One whose lease ended although it runs (it was stopped for longer, was cut off, or the metadata was
made anew) was held for dead by others. It is told so before its record is put again, so that it can
part with what they may have given away, and it comes back after a pause of chance: a thousand nodes
do not come back in one instant.

Now and then it looks whether the record still stands: one that somebody deleted is put again, and
that of another process, as where a node's directory was copied, is told of and left alone.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Generic, Literal, TypeVar

from kvstore.clock import Clock
from kvstore.errors import KVStoreError
from kvstore.metadata.protocol import Lease, LeaseLost, Metadata
from kvstore.metadata.records import ConductorRecord, NodeRecord

R = TypeVar("R", NodeRecord, ConductorRecord)

log = logging.getLogger(__name__)

_RENEWALS = 3  # in the time of a lease: two may fail
_LOOKS = 32  # renewals between two looks at the record: 60 a second of a thousand processes
_PACE = (0.7, 1.0)  # of that interval, by chance: nodes started together do not stay in step


class Announcer(Generic[R]):
    """`lapsed` is called once for each lease that was lost: given the record, it returns what it is
    from then on. Where it raises an `OSError` it is called again, and the record waits for that.

    `keep` is for one task; the other calls may be made beside it."""

    def __init__(
        self,
        metadata: Metadata,
        record: R,
        lease_ms: int,
        lapsed: Callable[[R], R],
        clock: Clock,
        dice: random.Random,
    ) -> None:
        self._metadata, self._lease_ms = metadata, lease_ms
        self._clock, self._dice = clock, dice
        self._record: R = record
        self._lapsed: Callable[[R], R] = lapsed
        self._lease: Lease | None = None  # under which the record stands, or is to
        self._stands: R | None = None  # as last put there
        self._away = False  # no sign of life was given when it was last due
        self._unlooked = 0  # since the last look
        self._doubled = False  # then another process's record stood there

    async def announce(self) -> None:
        """Put the record under a new lease. Raises what the metadata raises."""
        lease = await self._metadata.grant(self._lease_ms)
        # Known before the put: one that is not answered may have been made, and goes with it.
        self._stands, self._lease = None, lease
        await self._put(lease)

    async def keep(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._clock.sleep(self._lease_ms / 1e3 / _RENEWALS * self._dice.uniform(*_PACE))
            try:
                await self._renew()
            except (KVStoreError, OSError) as error:  # an `OSError` is what `lapsed` met
                if not self._away:
                    log.warning("this process cannot give its sign of life: %s", error)
                self._away = True
            else:
                if self._away:
                    log.warning("this process gives its sign of life again")
                self._away = False

    async def change_state(self, state: Literal["serving", "draining"]) -> None:
        """Say so now, or with the next renewal that the metadata takes."""
        self._record = replace(self._record, state=state)
        if self._lease is not None:
            with suppress(KVStoreError):
                await self._put(self._lease)

    async def leave(self) -> None:
        """Take the record back, or else let the lease run out. `keep` has ended before."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(KVStoreError):
                await self._metadata.revoke(lease)

    async def _renew(self) -> None:
        if self._lease is None:
            await self.announce()
            return
        try:
            await self._metadata.keep_alive(self._lease)
            self._unlooked += 1
            if self._stands != self._record:
                await self._put(self._lease)
            elif self._unlooked >= _LOOKS:
                await self._look(self._lease)
        except LeaseLost:
            self._record = self._lapsed(self._record)  # if it cannot, it is told again
            self._lease = None
            log.warning("the lease of %s ended, and is asked for anew", self._record.key())
            await self._clock.sleep(self._dice.uniform(0, self._lease_ms / 1e3))
            await self.announce()

    async def _look(self, lease: Lease) -> None:
        key, self._unlooked = self._record.key(), 0
        entry = await self._metadata.get(key)
        another = entry is not None and entry.lease != lease.id
        if another and not self._doubled:
            log.error(
                "another process serves as %s, and is known in the place of this one: it runs on "
                "a copy of this one's directory, or with its id; give each its own",
                key,
            )
        self._doubled = another
        if entry is None:
            log.warning("%s had been deleted, and is put again", key)
            await self._put(lease)

    async def _put(self, lease: Lease) -> None:
        record = self._record
        await self._metadata.put(record.key(), record.encode(), lease=lease.id)
        self._stands = record
