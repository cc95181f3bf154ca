"""The KV service's control calls: reads a request, asks the store, writes the reply.

Everything a caller sent is checked here for form (lengths, counts) and in the store for meaning.
Streams of bytes are in `kvstore.node.streams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias

from kvstore.block import Miss
from kvstore.errors import Invalid
from kvstore.failpoint import failpoint
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import BLOCK_TOKENS_MAX, HASH_BYTES, NAME_BYTES_MAX, RPC_KEYS_MAX
from kvstore.node.namespaces import Namespaces, Place
from kvstore.node.sessions import Session as NodeSession  # KVService.Session is a call
from kvstore.node.sessions import Sessions
from kvstore.node.store import Opened, Reserved, Store
from kvstore.node.tiers import Tiers
from kvstore.node.waiting import Waiting
from kvstore.node.write_queue import not_durable
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import tenant_of
from kvstore.telemetry import Counters
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

OUTCOME = {
    None: pb.HIT,
    Miss.ABSENT: pb.ABSENT,
    Miss.UNSEALED: pb.UNSEALED,
    Miss.UNLISTED: pb.UNLISTED,
    Miss.EVICTED: pb.EVICTED,
    Miss.REMOVED: pb.REMOVED,
    Miss.DAMAGED: pb.DAMAGED,
    Miss.QUARANTINED: pb.QUARANTINED,
    Miss.NO_ROOM: pb.NO_ROOM,
}
_SEALED = {
    "sealed": pb.SealReply.SEALED,
    "waiting": pb.SealReply.WAITING,
    "existed": pb.SealReply.EXISTED,
}


class KVService(kv_pb2_grpc.KVServicer):
    """Control calls. Each method is documented in proto/moonpool/v1/kv.proto."""

    def __init__(
        self,
        store: Store,
        namespaces: Namespaces,
        sessions: Sessions,
        counters: Counters,
        opened: pb.SessionEvent.Opened,
        tiers: Tiers | None = None,
    ) -> None:
        self.store, self.namespaces, self.sessions = store, namespaces, sessions
        self.tiers, self.waiting = tiers, Waiting(store.blocks)
        self.counters = counters
        self._opened = opened  # what every session is told of this node
        self.drained = asyncio.Event()

    @typed
    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        digest = await self.namespaces.register(request.spec, request.namespace)
        return pb.RegisterReply(namespace=digest)

    @typed
    async def Session(
        self, request: pb.SessionRequest, context: Context
    ) -> AsyncIterator[pb.SessionEvent]:
        _check_name("label", request.label)
        session = self.sessions.begin(tenant_of(context), request.label)
        self.counters.add("sessions")
        try:
            opened = pb.SessionEvent.Opened()
            opened.CopyFrom(self._opened)
            opened.session, opened.shm_token = session.token, session.shm_token
            yield pb.SessionEvent(opened=opened)
            await self.drained.wait()
            yield pb.SessionEvent(drain=pb.SessionEvent.Drain())
            await asyncio.Event().wait()  # until the caller hangs up or the server stops
        finally:
            self.sessions.end(session)
            self.store.end(session)

    @typed
    async def Match(self, request: pb.MatchRequest, context: Context) -> pb.MatchReply:
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        tenant, tokens = tenant_of(context), last_tokens(request.last_tokens, place.layout)
        found, why = self.store.match(tenant, place, hashes, tokens)
        return pb.MatchReply(blocks=found, reason=OUTCOME[why])

    @typed
    async def Exists(self, request: pb.ExistsRequest, context: Context) -> pb.ExistsReply:
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        found = self.store.exists(tenant_of(context), place, hashes)
        return pb.ExistsReply(outcomes=[OUTCOME[one] for one in found])

    @typed
    async def Remove(self, request: pb.RemoveRequest, context: Context) -> pb.RemoveReply:
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        removed = self.store.remove(tenant_of(context), place, hashes)
        failpoint("remove.before_flush")
        if self.tiers is not None:
            await self.tiers.flushed()
        failpoint("remove.before_answer")
        return pb.RemoveReply(removed=removed)

    @typed
    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveReply:
        self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        parents = _parents(request, hashes)
        full = place.layout.block_tokens
        tokens = [full] * (len(hashes) - 1) + [last_tokens(request.last_tokens, place.layout)]
        _check_name("writer_group", request.writer_group)
        chain = list(zip(hashes, parents, tokens, strict=True))
        fragment = fragment_of(request.fragment, place.layout)

        def reserve() -> list[Reserved | None]:
            session = self.session(request.session, context)  # it may have ended in the line
            return self.store.reserve(
                session, place, chain, fragment, request.writer_group, request.origin
            )

        patience = self.waiting.patience(context, place.layout, len(chain))
        reserved = await self.waiting.for_room(reserve, patience)
        reply = pb.ReserveReply()
        granted, existed = pb.ReserveReply.GRANTED, pb.ReserveReply.EXISTS
        reply.grants.extend([granted if one else existed for one in reserved])
        reply.slot_offsets.extend([one.slot.offset if one else 0 for one in reserved])
        reply.generations.extend([one.slot.generation if one else 0 for one in reserved])
        reply.handles.extend([one.handle if one else b"" for one in reserved])
        if request.hand_off:
            reply.hand_offs.extend([one.hand_off if one else b"" for one in reserved])
        return reply

    @typed
    async def Seal(self, request: pb.SealRequest, context: Context) -> pb.SealReply:
        session = self.session(request.session, context)
        handles = _counted(request.handles, "handles")
        claims = self.store.claims
        slots = [claims.window(session, h, f"handles[{i}]").slot for i, h in enumerate(handles)]
        keys = [slot.key for slot in slots]
        results = self.store.seal(session, handles)
        if request.durable:
            await self.durable(
                [key for key, one in zip(keys, results, strict=True) if one != "waiting"]
            )
        return pb.SealReply(sealed=[_SEALED[one] for one in results])

    @typed
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        session = self.session(request.session, context)
        self.store.abort(session, _counted(request.handles, "handles"))
        return pb.AbortReply()

    @typed
    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenReply:
        session = self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        if request.hand_offs and len(request.hand_offs) != len(hashes):
            raise Invalid(f"{len(request.hand_offs)} hand_offs for {len(hashes)} hashes")
        async with self.brought(session, place, hashes):
            opened = self.store.open(
                session, place, hashes, request.hand_offs, request.pin_ms, request.writer_group
            )
        reply = pb.OpenReply()
        for one in opened:
            if isinstance(one, Opened):
                slot = one.slot
                reply.outcomes.append(pb.HIT)
                reply.slot_offsets.append(slot.offset)
                reply.generations.append(slot.generation)
                reply.tokens.append(slot.tokens)
                reply.roots.append(slot.root)
                reply.handles.append(one.handle)
                self.counters.add("opened_bytes", place.layout.block_bytes(slot.tokens))
            else:
                reply.outcomes.append(OUTCOME[one])
                reply.slot_offsets.append(0)
                reply.generations.append(0)
                reply.tokens.append(0)
                reply.roots.append(b"")
                reply.handles.append(b"")
        return reply

    @typed
    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseReply:
        session = self.session(request.session, context)
        handles = _counted(request.handles, "handles")
        suspects, closed = set(request.suspects), set(handles)
        for i, suspect in enumerate(request.suspects):
            if suspect not in closed:
                raise Invalid(f"suspects[{i}] is not among the handles that are closed")
        held, slots = self.store.close(session, handles)
        for handle, slot in zip(handles, slots, strict=True):
            if handle in suspects and slot is not None:
                layout = self.namespaces.place_of(slot.owner).layout
                self.store.blocks.examine(slot, layout)
        return pb.CloseReply(held=held)

    @typed
    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinReply:
        session = self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        async with self.brought(session, place, hashes):
            opened = self.store.open(session, place, hashes, (), request.pin_ms)
        reply = pb.PinReply()
        for one in opened:
            if isinstance(one, Opened):
                reply.outcomes.append(pb.HIT)
                reply.handles.append(one.handle)
                reply.origins.append(one.slot.origin)
            else:
                reply.outcomes.append(OUTCOME[one])
                reply.handles.append(b"")
                reply.origins.append(0)
        return reply

    @typed
    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        session = self.session(request.session, context)
        self.store.renew(session, _counted(request.handles, "handles"), request.pin_ms)
        return pb.RenewReply()

    @typed
    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinReply:
        session = self.session(request.session, context)
        if request.handles or not request.query_tokens:
            self.store.unpin(session, _counted(request.handles, "handles"))
        self.store.used(request.query_tokens, request.hit_tokens)
        return pb.UnpinReply()

    @typed
    async def Quarantine(
        self, request: pb.QuarantineRequest, context: Context
    ) -> pb.QuarantineReply:
        _check_name("reason", request.reason)
        await self.namespaces.quarantine(request.namespace, request.reason)
        self.counters.add("quarantines")
        return pb.QuarantineReply()

    def brought(
        self, session: NodeSession, place: Place, hashes: Sequence[bytes]
    ) -> AbstractAsyncContextManager[None]:
        """Inside it these blocks are where readers can read them, as far as there is room."""
        if self.tiers is None:
            return nullcontext()
        return self.tiers.brought(self.store.keys(session.tenant, place, hashes))

    async def durable(self, keys: Sequence[bytes]) -> None:
        """Return once all of these blocks survive a power loss, or raise."""
        if self.tiers is None:
            raise Invalid("durable: this node has no SSD; start it with --ssd PATH:SIZE")
        held = [self.store.blocks.index.held(key) for key in keys]
        slots = [slot for slot in held if slot is not None]
        if len(slots) < len(keys):
            raise not_durable("it was dropped meanwhile")
        await self.tiers.durable(slots)

    def session(self, token: bytes, context: Context) -> NodeSession:
        """The caller's session. A token of another tenant's is as unknown as any."""
        return self.sessions.find(token, tenant_of(context))


def fragment_of(given: pb.Fragment, layout: SlotLayout) -> Fragment:
    """A fragment from the wire; zero counts mean all layers, all heads."""
    layers = given.layers or layout.layers - given.layer_first
    heads = given.heads or layout.kv_heads - given.head_first
    return layout.check(Fragment(given.layer_first, layers, given.head_first, heads))


def last_tokens(given: int, layout: SlotLayout) -> int:
    """Tokens of a chain's last block; 0 on the wire means it is full."""
    if given > layout.block_tokens:
        raise Invalid(f"tokens {given}: a block has at most {layout.block_tokens}")
    assert layout.block_tokens <= BLOCK_TOKENS_MAX
    return given or layout.block_tokens


def hashes_of(given: Sequence[bytes]) -> Sequence[bytes]:
    """Block hashes from the wire: not too many, each of the right length."""
    for i, one in enumerate(_counted(given, "hashes")):
        if len(one) != HASH_BYTES:
            check_hash(f"hashes[{i}]", one)
    return given


def parent_of(given: bytes) -> bytes:
    """The hash of the block before a chain's first; empty where there is none."""
    if given:
        check_hash("parent", given)
    return given


def _parents(request: pb.ReserveRequest, hashes: Sequence[bytes]) -> list[bytes]:
    """The block before each: as named, or the one before it in the call, or of lone blocks none."""
    first = parent_of(request.parent)
    if request.parents:
        if first or request.alone or request.last_tokens:
            raise Invalid("parents: no parent, alone or last_tokens beside it; blocks are full")
        if len(request.parents) != len(hashes):
            raise Invalid(f"{len(request.parents)} parents for {len(hashes)} hashes; one each")
        return [parent_of(one) for one in request.parents]
    if not request.alone:
        return [first, *hashes[:-1]]
    if first:
        raise Invalid("alone and parent: a block that stands alone has no block before it")
    return [b""] * len(hashes)


def check_hash(name: str, given: bytes) -> None:
    if len(given) != HASH_BYTES:
        raise Invalid(f"{name} is {len(given)} bytes; a block hash has {HASH_BYTES}")


def _check_name(field: str, given: str) -> None:
    size = len(given.encode())
    if size > NAME_BYTES_MAX:
        raise Invalid(f"{field} is {size} bytes; at most {NAME_BYTES_MAX}")
    if "\0" in given:
        raise Invalid(f"{field} holds a zero byte; it is text for people")


def _counted(given: Sequence[bytes], name: str) -> Sequence[bytes]:
    if not 0 < len(given) <= RPC_KEYS_MAX:
        raise Invalid(f"{len(given)} {name} in one call; send 1 to {RPC_KEYS_MAX}")
    return list(given)
