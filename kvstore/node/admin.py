"""What an operator asks of a node: drain, figures, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import psutil

from kvstore.block import Miss
from kvstore.config import DEFAULT_TENANT
from kvstore.core.lifecycle import Tier
from kvstore.core.shares import FAIR
from kvstore.errors import Invalid, Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import (
    CONTACTS_SHOWN_MAX,
    LIST_MAX,
    MOVE_OUT_SECONDS_MAX,
    REPLICAS_MAX,
    TAKE_BLOCKS_MAX,
)
from kvstore.node.contacts import Contact, Contacts
from kvstore.node.departure import Departure, Progress
from kvstore.node.forms import hashes_of
from kvstore.node.hbm import Hbm
from kvstore.node.namespaces import Namespaces
from kvstore.node.purge import Purge, Scope
from kvstore.node.replicas import Replicas
from kvstore.node.scrubber import Progress as Scrubbed
from kvstore.node.scrubber import Scrubber
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.node.tiers import Tiers
from kvstore.rpc.handler import typed
from kvstore.telemetry import Telemetry
from kvstore.transfer.lending import NONE, Lending
from kvstore.transfer.probe import Probe
from kvstore.wire.v1 import admin_pb2 as pb
from kvstore.wire.v1 import admin_pb2_grpc

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

LIST_DEFAULT = 1_000
SHORT_NAME = 12  # hex digits that name a block to a person
_COMPLAINT_CHARS_MAX = 200
_LOOKED_AT = 4_096  # blocks between two turns of others
_ROWS = 256  # of a listing between two turns of others
_PROGRESS_SECONDS = 0.25  # between two replies of a scrub


class AdminService(admin_pb2_grpc.AdminServicer):
    """The Admin service of one node."""

    def __init__(
        self,
        node_id: str,
        epoch: int,
        store: Store,
        namespaces: Namespaces,
        sessions: Sessions,
        counters: Telemetry,
        drain: Callable[[], None],
        leave: Callable[[], Awaitable[None]],
        scrubber: Scrubber,
        purge: Purge,
        contacts: Contacts,
        replicas: Replicas,
        departure: Departure,
        tiers: Tiers | None = None,
        lending: Lending = NONE,
        hbm: Hbm | None = None,
    ) -> None:
        self._node_id, self.epoch = node_id, epoch
        self._store, self._namespaces, self._sessions = store, namespaces, sessions
        self._counters = counters
        self._drain, self._leave = drain, leave
        self._tiers, self._lending, self._hbm_tier = tiers, lending, hbm
        self._replicas, self._departure = replicas, departure
        self._scrubber, self._purge, self._contacts = scrubber, purge, contacts
        self._process = psutil.Process()

    @typed
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        self._drain()
        return pb.DrainReply()

    @typed
    async def MoveOut(
        self, request: pb.MoveOutRequest, context: Context
    ) -> AsyncIterator[pb.MoveOutReply]:
        if request.seconds > MOVE_OUT_SECONDS_MAX:
            raise Invalid(f"seconds {request.seconds}: at most {MOVE_OUT_SECONDS_MAX}")
        await self._leave()
        async with aclosing(self._departure.move_out(request.seconds)) as steps:
            async for progress in steps:
                yield _told_of(progress)

    @typed
    async def Replicate(
        self, request: pb.ReplicateRequest, context: Context
    ) -> AsyncIterator[pb.ReplicateReply]:
        if not 1 <= request.copies <= REPLICAS_MAX:
            raise Invalid(f"copies {request.copies}: 1 to {REPLICAS_MAX}, this node's among them")
        try:
            digest = await self._namespace(request.namespace)
        except Unavailable:  # a namespace of which there are blocks here is known
            named = self._named(request.namespace)
            if len(named) != 1:
                raise
            [digest] = named
        place = await self._namespaces.place(digest, request.group)
        index, tenant = self._store.blocks.index, self._tenant(request.tenant or DEFAULT_TENANT)
        if request.hashes:
            keys = self._store.keys(tenant, place, hashes_of(request.hashes))
        else:
            whose = (place.owner, tenant)
            keys = []
            for i, key in enumerate(index.keys(lambda *of: of == whose)):
                one = index.peek(key)
                if one is not None and (one.owner, one.tenant) == whose:
                    keys.append(key)
                if i % _LOOKED_AT == 0:
                    await asyncio.sleep(0)
        keys = [key for key in keys if key in index]
        reply = pb.ReplicateReply(blocks=len(keys))
        for at in range(0, len(keys), TAKE_BLOCKS_MAX):
            some = keys[at : at + TAKE_BLOCKS_MAX]
            have = await self._replicas.copied(tenant, some, request.copies, False, None)
            reply.blocks_done += len(some)
            reply.whole += sum(one >= request.copies for one in have.values())
            reply.least = min([reply.least or REPLICAS_MAX, *have.values()])
            yield reply
        if not keys:
            yield reply

    @typed
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsReply:
        blocks, store = self._store.blocks, self._store
        held: dict[bytes, int] = {}
        for (digest, _), count in blocks.index.owners().items():
            held[digest] = held.get(digest, 0) + count
        return pb.StatsReply(
            node_id=self._node_id,
            epoch=self.epoch,
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
            tenants=self._tenants(),
            hbm=self._hbm(),
            numa=[
                pb.NumaStats(numa_node=node, slabs=slabs, slabs_empty=empty)
                for node, (slabs, empty) in blocks.slabs.by_numa().items()
            ],
            contacts=[
                pb.ContactStats(
                    node_id=one.node_id,
                    epoch=one.epoch,
                    address=one.address,
                    seconds_ago=self._contacts.seconds_since(one),
                    transports=_transports(one),
                )
                for one in self._contacts.worst(CONTACTS_SHOWN_MAX)
            ],
        )

    def _hbm(self) -> pb.HbmStats | None:
        """What there is of it, or why there is none; nothing where none was asked for."""
        if self._lending is NONE:
            return None
        used = sum(self._store.blocks.shares.used(Tier.HBM).values())
        lending = self._lending
        return pb.HbmStats(
            device=lending.name,
            size_bytes=lending.size_bytes,
            used_bytes=used,
            cause=lending.cause if self._hbm_tier is None else self._hbm_tier.broken,
        )

    def _tenants(self) -> list[pb.TenantStats]:
        """Whoever has a share of its own, or blocks."""
        shares = self._store.blocks.shares
        hbm, dram, ssd = (shares.used(tier) for tier in (Tier.HBM, Tier.DRAM, Tier.SSD))
        return [
            pb.TenantStats(
                name=name,
                weight=shares.granted.get(name, FAIR).weight,
                bytes_max=shares.granted.get(name, FAIR).bytes_max or 0,
                dram_bytes=dram.get(name, 0),
                ssd_bytes=ssd.get(name, 0),
                hbm_bytes=hbm.get(name, 0),
            )
            for name in sorted({*shares.granted, *hbm, *dram, *ssd})
        ]

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
        dropped = await self._purged(Scope(namespace=named[0]), Miss.QUARANTINED)
        await self._namespaces.release(named[0])
        return pb.ReleaseReply(namespace=named[0], dropped_blocks=dropped)

    @typed
    async def Purge(
        self, request: pb.PurgeRequest, context: Context
    ) -> AsyncIterator[pb.PurgeReply]:
        if request.WhichOneof("whose") == "tenant":
            scope = Scope(tenant=self._tenant(request.tenant))
        else:
            scope = Scope(namespace=await self._namespace(request.namespace))
        yield pb.PurgeReply(dropped_blocks=await self._purged(scope, Miss.REMOVED))

    @typed
    async def Scrub(
        self, request: pb.ScrubRequest, context: Context
    ) -> AsyncIterator[pb.ScrubReply]:
        loop, told = asyncio.get_running_loop(), 0.0
        async with aclosing(self._scrubber.round(request.bytes_per_second)) as steps:
            async for progress in steps:
                if progress.ended or loop.time() - told >= _PROGRESS_SECONDS:
                    told = loop.time()
                    yield _told(progress)

    @typed
    async def List(self, request: pb.ListRequest, context: Context) -> AsyncIterator[pb.ListReply]:
        limit = min(request.limit or LIST_DEFAULT, LIST_MAX)
        blocks, sent = self._store.blocks, 0
        keys = blocks.most_recent(LIST_MAX if request.namespace else limit)
        for i, key in enumerate(keys):
            if i % _ROWS == 0:  # also where none of these is told
                await asyncio.sleep(0)
            slot = blocks.index.peek(key)
            if slot is None:
                continue  # it went while others before it were told
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

    async def _purged(self, scope: Scope, why: Miss) -> int:
        # A caller that hangs up does not leave it half done.
        return await asyncio.shield(asyncio.create_task(self._purge.carry_out(scope, why)))

    async def _namespace(self, given: str) -> bytes:
        await self._namespaces.load()  # what this run has not been asked for may be on SSD
        named = self._named(given)
        if len(named) != 1:
            known = ", ".join(one.hex()[:SHORT_NAME] for one in self._namespaces.known())
            raise Invalid(
                f"namespace {given!r} names {len(named)} namespaces; there are: {known or 'none'}"
            )
        return named[0]

    def _named(self, given: str) -> list[bytes]:
        """Those known here that it may stand for."""
        known = self._namespaces.known()
        return [digest for digest in known if given and digest.hex().startswith(given)]

    def _tenant(self, given: str) -> str:
        if given not in self._store.tenants:
            names = ", ".join(self._store.tenants)
            raise Invalid(f"tenant {given!r} is not known here; there are: {names}")
        return given


def _transports(contact: Contact) -> list[pb.TransportStats]:
    said = {name: pb.TransportStats(name=name) for name in contact.measured}
    for name, probe in contact.measured.items():
        if isinstance(probe, Probe):
            said[name].round_trip_seconds = probe.round_trip_seconds
            said[name].there_bytes_per_second = probe.there_bytes_per_second
            said[name].back_bytes_per_second = probe.back_bytes_per_second
    for one in contact.complaints:
        said[one.transport].complaint = one.text[:_COMPLAINT_CHARS_MAX]
        said[one.transport].error = one.error
    return list(said.values())


def _told(progress: Scrubbed) -> pb.ScrubReply:
    return pb.ScrubReply(
        blocks=progress.blocks,
        blocks_done=progress.blocks_done,
        bytes_done=progress.bytes_done,
        damaged=progress.damaged,
        unread=progress.unread,
    )


def _told_of(progress: Progress) -> pb.MoveOutReply:
    return pb.MoveOutReply(
        blocks=progress.blocks,
        elsewhere=progress.elsewhere,
        moved=progress.moved,
        left=progress.left,
        nodes=progress.nodes,
    )
