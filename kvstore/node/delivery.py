"""What one other node brings of the blocks that are wanted: opened there, moved slot to slot, and
sealed here once every strip is proven and the root is the one that the holder gave.

Whatever becomes of a delivery, its slots here are let go only when nothing writes to them any more,
and its pins there are closed without anybody waiting for that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from kvstore.clock import Clock
from kvstore.core.lifecycle import Slot
from kvstore.core.pace import Pace
from kvstore.layout import IDENTITY_OFFSET, TABLE_OFFSET
from kvstore.memory.arena import Arena
from kvstore.node.blocks import Blocks
from kvstore.node.in_flight import InFlight
from kvstore.node.link import Link
from kvstore.node.namespaces import Place
from kvstore.node.openings import Openings
from kvstore.node.peers import Peers
from kvstore.node.replies import hits_of, sealed_of, slots_of
from kvstore.telemetry import Telemetry
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.landing import IDENTITY_BYTES
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks of one call that this node lacks: rows of parallel lists."""

    tenant: str
    place: Place
    hashes: Sequence[bytes]  # empty where only the keys are known
    keys: Sequence[bytes]
    spared: Collection[bytes]  # of the whole call: none of them goes to make room for another

    @property
    def size_bytes(self) -> int:
        """Of their payloads, at most."""
        return len(self.keys) * self.place.layout.payload_bytes

    def pick(self, rows: Sequence[int]) -> Wanted:
        hashes = [self.hashes[i] for i in rows] if self.hashes else []
        return replace(self, hashes=hashes, keys=[self.keys[i] for i in rows])


class Deliveries:
    """From all other nodes."""

    def __init__(
        self, blocks: Blocks, arena: Arena, peers: Peers, clock: Clock, counters: Telemetry
    ) -> None:
        self._blocks, self._arena, self._peers = blocks, arena, peers
        self._clock, self._counters = clock, counters
        self._in_flight = InFlight()
        self._openings = Openings()
        self.pace = Pace()

    def lacking(self, wanted: Wanted) -> Wanted:
        """What of it is still not here."""
        index = self._blocks.index
        return wanted.pick([i for i, key in enumerate(wanted.keys) if key not in index])

    def turn(
        self, holder: str, wanted: Wanted, patience: float
    ) -> AbstractAsyncContextManager[None]:
        """Inside it a holder may `bring` these; `Overloaded` where no turn comes in that time."""
        size = len(wanted.keys) * wanted.place.layout.sent_bytes
        return self._in_flight.turn(holder, wanted.tenant, size, patience)

    async def bring(self, holder: str, wanted: Wanted, term: Term) -> list[bytes]:
        """Seal here what a holder has of these, whose turn it is; the keys of those that it has and
        that did not come. Raises a `KVStoreError` where the holder, or this node, does not do its
        part. The term is that of their way here."""
        link = await self._peers.link(holder, wanted.tenant)
        began = self._clock.now()  # a turn to begin a session is no holder's time
        namespace, group = wanted.place.owner
        request = pb.OpenRequest(
            session=link.session,
            namespace=namespace,
            group=group,
            hashes=wanted.hashes,
            stored_keys=() if wanted.hashes else wanted.keys,
            lineage=True,
        )
        reply = await self._openings.open(link, request)
        suspects: list[bytes] = []
        try:
            hits = hits_of(reply, len(wanted.keys), wanted.place.layout)
            if rows := sealed_of(reply, hits):
                size = 0
                line = self._blocks.carried.link
                line.begin(self._clock.now(), holder)
                try:
                    size, suspects = await self._land(link, wanted, reply, rows, term)
                finally:
                    line.end(self._clock.now(), size, holder)
                self.pace.note(holder, size, self._clock.now() - began)
        finally:
            self._openings.let_go(link, reply.handles, suspects)
        there, index = (pb.HIT, pb.NO_ROOM, pb.LATE), self._blocks.index
        told = zip(wanted.keys, reply.outcomes, strict=True)
        return [key for key, one in told if one in there and key not in index]

    async def close(self) -> None:
        await self._openings.close()

    async def _land(
        self, link: Link, wanted: Wanted, reply: pb.OpenReply, rows: list[int], term: Term
    ) -> tuple[int, list[bytes]]:
        """Move, prove, seal; the bytes that came, and the handles of what did not have its hash."""
        layout = wanted.place.layout
        targets = self._targets(link, wanted, reply, rows)
        rows = rows[: len(targets)]
        whole = np.zeros(len(rows), dtype=bool)
        try:
            slots = slots_of(reply, rows)
            offsets = np.array([one.offset + layout.head_bytes for one in targets], dtype=np.int64)
            landing = HashedLanding(layout, self._arena.bytes, offsets, slots.tokens)
            moved = await link.pull(layout, slots, landing, term)
            for i in np.flatnonzero(moved):
                whole[i] = self._settled(targets[i], landing.runs[i], wanted.place)
        finally:
            self._blocks.arriving.end([*compress(targets, whole)], layout, whole=True)
            self._blocks.arriving.end([*compress(targets, ~whole)], layout, whole=False)
        size = sum(layout.block_bytes(reply.tokens[row]) for row in rows)
        self._counters.add("fetched_blocks", int(whole.sum()))
        self._counters.add("fetched_bytes", size)
        return size, [reply.handles[row] for row, good in zip(rows, whole, strict=True) if not good]

    def _targets(
        self, link: Link, wanted: Wanted, reply: pb.OpenReply, rows: list[int]
    ) -> list[Slot]:
        """Slots for the first of these blocks, as many as there is room for."""
        some = [(wanted.keys[row], reply.parents[row], reply.tokens[row]) for row in rows]
        told = (wanted.tenant, wanted.spared, [reply.origins[row] for row in rows])
        taken = self._blocks.arriving.begin(wanted.place.owner, wanted.place.layout, some, *told)
        if len(taken) < len(rows):
            count = (len(taken), len(rows))
            log.info("room for %d of %d blocks that node %s has", *count, link.node_id)
        return taken

    def _settled(self, slot: Slot, run: np.ndarray, place: Place) -> bool:
        """Put the table beside the strips; False if this is not the block that was asked for."""
        view, at = self._arena.view, slot.offset + IDENTITY_OFFSET
        if view[at : at + IDENTITY_BYTES] != run[:IDENTITY_BYTES].data:
            return False
        at = slot.offset + TABLE_OFFSET
        view[at : at + 8 * place.layout.strips] = run[IDENTITY_BYTES:].data
        return True
