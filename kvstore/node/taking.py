"""Blocks that this node takes because another asks it to: replicas, and what a leaving node had.

They are fetched as a reader's are, with the same proofs, but behind whatever readers wait for: a
few at a time, of no tenant all of them, one batch of each source at once, and no longer than the
call may last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.core.turns import Places
from kvstore.errors import (
    Draining,
    Invalid,
    KVStoreError,
    Overloaded,
    Quarantined,
)
from kvstore.limits import TAKE_BLOCKS_MAX, TAKES_MAX
from kvstore.node.delivery import Wanted
from kvstore.node.fetch import Fetch, rows_max
from kvstore.node.namespaces import Place
from kvstore.node.peers import Peers
from kvstore.node.store import Store
from kvstore.node.tiers import Tiers
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

PIECE_BLOCKS = 32  # fetched in one go at most: readers wait for no more than that
_RETRY_MS = 500


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks that a source has, each after what stands before it."""

    tenant: str
    place: Place
    source: str  # node id
    keys: Sequence[bytes]  # stored
    durable: bool = False
    worth: Sequence[float] = ()  # of each to the source; empty: room is made as for any put


class Taking:
    """What this node is taking, by source."""

    def __init__(
        self,
        store: Store,
        fetch: Fetch,
        peers: Peers,
        tiers: Tiers | None,
        counters: Telemetry,
    ) -> None:
        self._store, self._fetch, self._peers, self._tiers = store, fetch, peers, tiers
        self._counters = counters
        self._sources, self._places = set[str](), Places(TAKES_MAX)

    async def take(self, offer: Offer, seconds: float) -> list[bool]:
        """Which of the blocks are listed here at the end, durably if that is asked.

        Raises `Draining`, `Quarantined`, `Overloaded` while it takes enough or where the source
        cannot be asked, or `Invalid` where durable blocks are asked of a node without SSD.
        """
        self._begin(offer)
        ends = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(ends):
                await self._take(offer)
        except TimeoutError:
            log.info("not all that node %s offered came within %.1f s", offer.source, seconds)
        finally:
            self._sources.discard(offer.source)
            self._places.give_back(offer.tenant)
        self._check_stays()  # if it leaves, no source may count on what came
        here = self._here(offer)
        return await self._kept(offer.keys, here, ends) if offer.durable else here

    async def forgo(self, tenant: str, keys: Sequence[bytes]) -> None:
        """As `Fetch.forgo`."""
        await self._fetch.forgo(tenant, keys)

    @property
    def free_bytes(self) -> int:
        """Of memory, in slabs that no block is in."""
        slabs = self._store.blocks.slabs
        return slabs.empty_slabs * slabs.slab_bytes

    def _begin(self, offer: Offer) -> None:
        self._check_stays()
        if offer.place.owner[0] in self._store.quarantined:
            raise Quarantined("this namespace gave wrong KV: `moonpool stat` says what")
        if offer.durable and self._tiers is None:
            raise Invalid("durable: this node has no SSD")
        if not self._peers.may_ask(offer.source):
            # No `Unavailable`: that is what the source has of a node that is gone, and it would
            # read from this one no more for a while.
            why = f"node {offer.source} is not known here, or failed a moment ago"
            raise Overloaded(why, _RETRY_MS)
        if offer.source in self._sources or not self._places.try_take(offer.tenant):
            raise Overloaded("this node is taking what was offered before", _RETRY_MS)
        self._sources.add(offer.source)

    def _check_stays(self) -> None:
        if self._store.draining:
            raise Draining("this node is draining: ask another", _RETRY_MS)

    async def _take(self, offer: Offer) -> None:
        index = self._store.blocks.index
        rows = [i for i, key in enumerate(offer.keys) if key not in index][:TAKE_BLOCKS_MAX]
        most, spared = min(PIECE_BLOCKS, rows_max(offer.place)), frozenset(offer.keys)
        for at in range(0, len(rows), most):
            some = rows[at : at + most]
            if offer.worth:  # what is worth less may stand before what is worth more
                lost = self._lost(offer)
                some = [i for i in some if lost is None or offer.worth[i] > lost]
            if not some:
                continue
            keys = [offer.keys[i] for i in some]
            wanted = Wanted(offer.tenant, offer.place, (), keys, spared)
            await self._fetch.take(offer.source, wanted)
            taken = sum(key in index for key in keys)
            self._counters.add("taken_blocks", taken)
            if not taken or self._store.draining:
                return  # the source has failed, or there is no room, or what comes goes soon

    def _lost(self, offer: Offer) -> float | None:
        """Worth of what the next of these blocks would displace; None: of nothing."""
        owner, layout = offer.place.owner, offer.place.layout
        return self._store.blocks.would_lose(owner, offer.tenant, layout)

    def _here(self, offer: Offer) -> list[bool]:
        owned = self._store.owned(offer.tenant, offer.place, offer.keys)
        found = map(self._store.blocks.index.peek, owned)
        return [slot is not None and slot.listed for slot in found]

    async def _kept(self, keys: Sequence[bytes], here: Sequence[bool], ends: float) -> list[bool]:
        """Which of those that are here survive a power loss: all of them, or it is not known. A
        disk that is late costs that alone: to the source, no answer is that of a dead node."""
        assert self._tiers is not None
        held = [self._store.blocks.index.held(key) for key in keys]
        slots = [slot for slot, good in zip(held, here, strict=True) if good and slot is not None]
        try:
            async with asyncio.timeout_at(ends):
                await self._tiers.durable(slots)
        except (KVStoreError, TimeoutError) as error:
            why = str(error) or "the disk is late"
            log.warning("blocks that were to be durable are not: %s", why)
            return [False] * len(keys)
        return list(here)
