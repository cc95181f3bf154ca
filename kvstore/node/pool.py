"""The rest of the pool as one node sees it: who there is, who holds what, and what it fetches.

Where there is nobody else all of it costs nothing and finds nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kvstore.clock import Clock
from kvstore.config import Credentials
from kvstore.memory.arena import Arena
from kvstore.metadata import Metadata
from kvstore.metadata.records import ConductorRecord, NodeRecord
from kvstore.metadata.roster import Roster
from kvstore.node.contacts import Contacts
from kvstore.node.fetch import Fetch
from kvstore.node.follow import LOOKS_OF_ALL_MAX, Follow
from kvstore.node.peers import BEGINNING_MAX, Peers
from kvstore.node.replicas import Replicas
from kvstore.node.store import Store
from kvstore.node.taking import Taking
from kvstore.node.threads import crew
from kvstore.node.tiers import Tiers
from kvstore.node.ucx_way import UcxWays
from kvstore.node.whereabouts import Whereabouts
from kvstore.telemetry import Telemetry

THREADS = 16 + LOOKS_OF_ALL_MAX  # that wait for data connections to other nodes
# That begin these: holders that hang may have all of the others, and who is well is not held for
# one that hangs because nobody came to greet it.
GREETERS = BEGINNING_MAX


class Pool:
    """One node's side of its pool. Whoever has it runs its `keepers`, and closes it at the end."""

    def __init__(
        self,
        node_id: str,
        metadata: Metadata,
        store: Store,
        arena: Arena,
        clock: Clock,
        counters: Telemetry,
        credentials: Credentials,
        tiers: Tiers | None,
        labels: Mapping[str, str],  # of this node, as its record has them
        ucx: UcxWays | None = None,
    ) -> None:
        dice = random.Random()
        self._nodes = Roster(metadata, NodeRecord, clock, dice, came=self._seen)
        self._conductors = Roster(metadata, ConductorRecord, clock, dice)
        self._threads, self._greeters = crew("peer", THREADS), crew("greet", GREETERS)
        self.contacts = Contacts(clock, counters)
        known = (node_id, self._nodes, clock, self._threads, self._greeters, credentials)
        self.peers = Peers(*known, self.contacts, ucx)
        given = (self._conductors, clock, dice, credentials)
        self.whereabouts = Whereabouts(self.peers, *given)
        self.fetch = Fetch(store.blocks, arena, self.peers, self.whereabouts, clock, counters)
        told = (store.claims, store.forgone, clock, counters)
        self.follow = Follow(store.blocks, arena, self.peers, *told)
        self.taking = Taking(store, self.fetch, self.peers, tiers, counters)
        self.replicas = Replicas(store, self.peers, self.whereabouts, labels, counters)

    def _seen(self, record: NodeRecord) -> None:
        self.peers.seen(record)

    @property
    def keepers(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on until the end, by what it does."""
        return {
            "reading who serves": self._nodes.keep,
            "reading who conducts": self._conductors.keep,
            "ending idle links": self.peers.keep,
        }

    async def close(self) -> None:
        await self.replicas.close()
        await self.fetch.close()
        await self.follow.close()
        await self.contacts.close()
        await self.peers.close()
        await self.whereabouts.close()
        for threads in (self._threads, self._greeters):
            threads.shutdown()
