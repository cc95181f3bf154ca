"""What an operator asks of a node: drain, figures, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import psutil

from kvstore.block import Miss
from kvstore.errors import Invalid
from kvstore.layout import SlotLayout
from kvstore.node.namespaces import Namespaces
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.node.tiers import Tiers
from kvstore.rpc.handler import typed
from kvstore.telemetry import Counters
from kvstore.wire.v1 import admin_pb2 as pb
from kvstore.wire.v1 import admin_pb2_grpc

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

LIST_DEFAULT, LIST_MAX = 1_000, 1_000_000
SHORT_NAME = 12  # hex digits that name a block to a person


class AdminService(admin_pb2_grpc.AdminServicer):
    """The Admin service of one node."""

    def __init__(
        self,
        node_id: str,
        epoch: int,
        store: Store,
        namespaces: Namespaces,
        sessions: Sessions,
        counters: Counters,
        drain: Callable[[], None],
        tiers: Tiers | None = None,
    ) -> None:
        self._node_id, self._epoch = node_id, epoch
        self._store, self._namespaces, self._sessions = store, namespaces, sessions
        self._counters = counters
        self._drain, self._tiers = drain, tiers
        self._process = psutil.Process()

    @typed
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        self._drain()
        return pb.DrainReply()

    @typed
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsReply:
        blocks, store = self._store.blocks, self._store
        held: dict[bytes, int] = {}
        for (digest, _), count in blocks.index.owners().items():
            held[digest] = held.get(digest, 0) + count
        return pb.StatsReply(
            node_id=self._node_id,
            epoch=self._epoch,
            state="draining" if store.draining else "serving",
            arena_bytes=blocks.slabs.capacity_bytes,
            slab_bytes=blocks.slabs.slab_bytes,
            slabs=blocks.slabs.capacity_bytes // blocks.slabs.slab_bytes,
            slabs_empty=blocks.slabs.empty_slabs,
            blocks=len(blocks.index),
            blocks_unlisted=blocks.index.unlisted,
            windows=len(store.windows),
            pins=len(store.pins),
            sessions=len(self._sessions),
            resident_bytes=self._process.memory_info().rss,
            counters=self._counters.totals(),
            namespaces=[
                pb.NamespaceStats(
                    namespace=digest,
                    model=spec.model,
                    spec=spec.canonical(),
                    blocks=held.get(digest, 0),
                    block_bytes=SlotLayout.of(spec, 0).payload_bytes,
                    quarantined=self._namespaces.quarantined.get(digest, ""),
                )
                for digest, spec in self._namespaces.known().items()
            ],
            ssd=[
                pb.SsdStats(
                    path=path.name,
                    size_bytes=path.size_bytes,
                    files=path.files,
                    retired_files=path.retired_files,
                    cause=path.cause,
                )
                for path in (self._tiers.paths() if self._tiers is not None else ())
            ],
        )

    @typed
    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        named = [
            digest
            for digest in self._namespaces.quarantined
            if digest.hex().startswith(request.namespace)
        ]
        if len(named) != 1 or not request.namespace:
            known = ", ".join(one.hex()[:SHORT_NAME] for one in self._namespaces.quarantined)
            raise Invalid(
                f"namespace {request.namespace!r} names {len(named)} namespaces; "
                f"in quarantine are: {known or 'none'}"
            )
        blocks = self._store.blocks
        wrong = [slot for slot in blocks.index if slot.owner[0] == named[0]]
        for slot in wrong:
            blocks.drop(slot, Miss.QUARANTINED)
        await self._namespaces.release(named[0])
        return pb.ReleaseReply(namespace=named[0], dropped_blocks=len(wrong))

    @typed
    async def List(self, request: pb.ListRequest, context: Context) -> AsyncIterator[pb.ListReply]:
        limit = min(request.limit or LIST_DEFAULT, LIST_MAX)
        sent = 0
        for slot in self._store.blocks.most_recent(LIST_MAX):
            if request.namespace and slot.owner[0] != request.namespace:
                continue
            if sent == limit:
                return
            sent += 1
            yield pb.ListReply(
                namespace=slot.owner[0],
                group=slot.owner[1],
                block=slot.key.hex()[:SHORT_NAME],
                parent=slot.parent.hex()[:SHORT_NAME],
                tokens=slot.tokens,
                root=slot.root,
                pins=slot.pins,
                listed=slot.listed,
            )
            if sent % 256 == 0:
                await asyncio.sleep(0)
