"""Purge: after it has returned, no tier and no restart of this node serves what it held before.

A tombstone in the metadata comes first and is durable before anything else: whatever a later start
finds on SSD, by its index or by the heads of slots, it passes over what the tombstone covers. Then
every block goes from memory, with the writers and pins on it; then the disk's index forgets it, and
its head there is overwritten and synced. What a reader has mapped or copied already it keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from kvstore.block import Miss, tenant_digest
from kvstore.clock import Clock
from kvstore.core.lifecycle import Owner, Slot, Tier
from kvstore.core.tombstones import Tombstones
from kvstore.disk.protocol import DiskError
from kvstore.errors import Unavailable
from kvstore.metadata.protocol import Metadata
from kvstore.metadata.records import PurgeRecord
from kvstore.node.store import Store
from kvstore.node.tiers import Tiers
from kvstore.telemetry import Telemetry

_PIECE_BLOCKS = 128  # woken and dropped in one go, in some 10 ms: other callers wait


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose blocks go: those of a namespace, or those of a tenant. One of the two is given."""

    namespace: bytes = b""
    tenant: str = ""

    def covers(self, owner: Owner, tenant: str) -> bool:
        return owner[0] == self.namespace if self.namespace else tenant == self.tenant

    def has(self, slot: Slot) -> bool:
        return self.covers(slot.owner, slot.tenant)


class Purge:
    """Carries out purges at one node, one at a time. `before`: above every generation that earlier
    starts gave out, for a node that runs without the SSD it had."""

    def __init__(
        self,
        store: Store,
        metadata: Metadata,
        tiers: Tiers | None,
        node_id: str,
        before: int,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._store, self._metadata, self._tiers = store, metadata, tiers
        self._node_id, self._before = node_id, before
        self._clock, self._counters = clock, counters
        self._turn = asyncio.Lock()

    async def carry_out(self, scope: Scope, why: Miss = Miss.REMOVED) -> int:
        """How many blocks went. Raises `Unavailable`, and says what is left, if it is not done.

        Not to be cancelled halfway: slots are held until the disk is done with their heads.
        """
        async with self._turn:
            try:
                await self._bury(scope)
            except Unavailable as failed:
                raise Unavailable(f"nothing was purged: {failed}") from None
            blocks, held = self._store.blocks, list[Slot]()
            try:
                dropped, keys = 0, blocks.index.keys(scope.covers)
                while some := list(islice(keys, _PIECE_BLOCKS)):
                    dropped += self._drop(scope, map(blocks.index.held, some), why, held)
                    await self._clock.sleep(0)
                # No wait from here to the second tombstone: it covers what came since the first,
                # all of which goes now, and nothing that comes later. None of it sleeps: what did
                # was woken by its key, and no block ever falls asleep.
                dropped += self._drop(scope, list(blocks.index), why, held)
                self._store.expel(scope.has)
                held += self._being_written(scope)
                await self._end(scope, held)
            finally:
                for slot in held:
                    blocks.let_go(slot)
            return dropped

    def _drop(self, scope: Scope, slots: Iterable[Slot | None], why: Miss, held: list[Slot]) -> int:
        """Forget the blocks of the scope; `held` grows by their slots on SSD, held from others."""
        dropped = [slot for slot in slots if slot is not None and scope.has(slot)]
        for slot in dropped:
            there = slot if slot.tier is Tier.SSD else slot.twin
            if there is not None:
                there.moves += 1
                held.append(there)
        self._store.blocks.drop_all(dropped, why)
        self._counters.add("purged_blocks", len(dropped))
        return len(dropped)

    def _being_written(self, scope: Scope) -> list[Slot]:
        """Slots on SSD that are about to get a block of the scope, held as well."""
        targets = [] if self._tiers is None else self._tiers.being_written()
        found = [slot for slot in targets if scope.has(slot)]
        for slot in found:
            slot.moves += 1
        return found

    async def _end(self, scope: Scope, held: list[Slot]) -> None:
        try:
            await self._bury(scope)
            if self._tiers is not None:
                await self._tiers.erase(held)
        except (DiskError, Unavailable) as failed:
            raise Unavailable(
                "purged from memory, but not wholly from SSD: a restart may bring it back, should "
                f"the node lose its metadata; purge again, unless a file is retired: {failed}"
            ) from None

    async def _bury(self, scope: Scope) -> None:
        ssd = self._store.blocks.ssd
        generation = self._before if ssd is None else ssd.generation
        name = scope.namespace.hex()
        record = PurgeRecord(self._node_id, name, scope.tenant, generation)
        await self._metadata.put(record.key(), record.encode())


async def load_tombstones(metadata: Metadata, node_id: str) -> Tombstones:
    """What this node has purged in all its runs."""
    entries, _ = await metadata.list(PurgeRecord.prefix_of(node_id))
    records = [PurgeRecord.parse(entry) for entry in entries]
    return Tombstones(
        {bytes.fromhex(one.namespace): one.generation for one in records if one.namespace},
        {tenant_digest(one.tenant): one.generation for one in records if one.tenant},
    )
