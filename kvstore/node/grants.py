"""What operators grant tenants, as the node goes by it: read at its start, then every few seconds.

A reading replaces all grants at once, so a record that was deleted, or that cannot be read, leaves
its tenant with the share of one that has none. Metadata that does not answer changes nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from kvstore.clock import Clock
from kvstore.core.shares import Share, Shares
from kvstore.errors import KVStoreError
from kvstore.limits import SHARES_MAX
from kvstore.metadata.protocol import Metadata
from kvstore.metadata.records import BadRecord, ShareRecord

log = logging.getLogger(__name__)

READ_SECONDS = 2.0  # until a change is taken up


class Grants:
    """Keeps `Shares.granted` as the metadata says."""

    def __init__(self, metadata: Metadata, shares: Shares, clock: Clock) -> None:
        self._metadata, self._shares, self._clock = metadata, shares, clock
        self._complaints: set[str] = set()  # of the last reading

    async def load(self) -> None:
        """Read once; raises `Unavailable`."""
        entries, _ = await self._metadata.list(ShareRecord.prefix)
        granted: dict[str, Share] = {}
        complaints: set[str] = set()
        if len(entries) > SHARES_MAX:
            complaints.add(
                f"there are more than {SHARES_MAX} shares: the last by name do not count"
            )
        for entry in entries[:SHARES_MAX]:
            try:
                record = ShareRecord.parse(entry)
            except BadRecord as error:
                complaints.add(f"a share does not count: {error}")
                continue
            granted[record.name] = Share(record.weight, record.bytes_max or None)
        for complaint in sorted(complaints - self._complaints):
            log.warning("%s", complaint)
        self._complaints = complaints
        self._shares.granted = granted

    async def keep(self) -> None:
        """Read again until cancelled."""
        while True:
            await self._clock.sleep(READ_SECONDS)
            with suppress(KVStoreError):  # whoever renews the node's lease says so
                await self.load()
