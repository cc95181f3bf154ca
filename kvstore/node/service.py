"""The KV service's control calls: reads a request, asks the store, writes the reply.

Everything a caller sent is checked here for form (lengths, counts) and in the store for meaning.
Streams of bytes are in `kvstore.node.streams`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from kvstore.block import Miss
from kvstore.core.lifecycle import Tier
from kvstore.errors import Denied, Invalid, SessionEnded
from kvstore.failpoint import failpoint
from kvstore.limits import COPY_SECONDS_MAX
from kvstore.node.follow import Asked
from kvstore.node.forms import (
    OUTCOME,
    SEALED,
    aborted_of,
    after_of,
    check_name,
    check_unpinned,
    copies_wanted,
    counted,
    fragment_of,
    hashes_of,
    last_tokens,
    opened_columns,
    parents_of,
    patience,
    reach_of,
    stored_keys_of,
    suspects_of,
    used_of,
)
from kvstore.node.hbm import Hbm
from kvstore.node.long_calls import LongCalls
from kvstore.node.namespaces import Namespaces, Place
from kvstore.node.pool import Pool
from kvstore.node.read_ahead import ReadAhead
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session as NodeSession  # KVService.Session is a call
from kvstore.node.sessions import Sessions
from kvstore.node.store import Reserved, Store
from kvstore.node.suspects import Suspects
from kvstore.node.tiers import Tiers
from kvstore.node.waiting import Waiting, room_patience
from kvstore.node.write_queue import not_durable
from kvstore.rpc.access import Role
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import caller_of, tenant_of
from kvstore.telemetry import Telemetry
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


class KVService(kv_pb2_grpc.KVServicer):
    """Control calls. Each method is documented in proto/moonpool/v1/kv.proto."""

    def __init__(
        self,
        store: Store,
        namespaces: Namespaces,
        sessions: Sessions,
        counters: Telemetry,
        opened: pb.SessionEvent.Opened,
        ahead: ReadAhead,
        tiers: Tiers | None = None,
        pool: Pool | None = None,
        hbm: Hbm | None = None,
    ) -> None:
        self.pool, self.hbm = pool, hbm  # None: there are no other nodes, there is none
        self.store, self.namespaces, self.sessions = store, namespaces, sessions
        self.tiers, self.waiting = tiers, Waiting(store.blocks)
        self._long = LongCalls(store, sessions)
        self.counters, self._ahead = counters, ahead
        self._suspects = Suspects(store.blocks, lambda owner: namespaces.place_of(owner).layout)
        self.drained, self._opened = asyncio.Event(), opened  # what every session is told

    @typed
    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        digest = await self.namespaces.register(request.spec, request.namespace)
        return pb.RegisterReply(namespace=digest)

    @typed
    async def Session(
        self, request: pb.SessionRequest, context: Context
    ) -> AsyncIterator[pb.SessionEvent]:
        check_name("label", request.label)
        session = self.sessions.begin(tenant_of(context), request.label)
        session.numa_node = request.numa_node if request.HasField("numa_node") else None
        session.names_memory = caller_of(context).role in (Role.NODE, Role.OPEN)
        self.counters.add("sessions")
        draining = asyncio.ensure_future(self.drained.wait())
        over = asyncio.ensure_future(session.over.wait())
        try:
            opened = pb.SessionEvent.Opened()
            opened.CopyFrom(self._opened)
            opened.session, opened.shm_token = session.token, session.shm_token
            opened.data_token = session.data_token
            yield pb.SessionEvent(opened=opened)
            await asyncio.wait((draining, over), return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                yield pb.SessionEvent(drain=pb.SessionEvent.Drain())
            await over  # or until the caller hangs up, or the server stops
            raise SessionEnded("this node was held for dead meanwhile: begin another session")
        finally:
            draining.cancel()
            over.cancel()
            self.sessions.end(session)
            self.store.end(session)

    @typed
    async def Match(self, request: pb.MatchRequest, context: Context) -> pb.MatchReply:
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        tenant, tokens = tenant_of(context), last_tokens(request.last_tokens, place.layout)
        keys = await self._long.keys(tenant, place, hashes)
        found, why = self.store.match(place, keys, tokens)
        if why is not None and self.pool is not None and why is not Miss.QUARANTINED:
            more = await self.pool.fetch.leading(keys[found:])
            self.store.found_elsewhere(place, len(hashes), found, more, tokens)
            found += more
            why = None if found == len(hashes) else self._long.why_not(keys[found])
        if why is not None:
            self.counters.add("match_miss", label=why)
        return pb.MatchReply(blocks=found, reason=OUTCOME[why])

    @typed
    async def Exists(self, request: pb.ExistsRequest, context: Context) -> pb.ExistsReply:
        place = await self.namespaces.place(request.namespace, request.group)
        tenant, hashes = tenant_of(context), hashes_of(request.hashes)
        found = await self._long.exists(tenant, place, hashes)
        missing = [i for i, one in enumerate(found) if one not in (None, Miss.QUARANTINED)]
        if missing and self.pool is not None:
            keys = await self._long.keys(tenant, place, [hashes[i] for i in missing])
            elsewhere = await self.pool.fetch.elsewhere(keys)
            for i, key, there in zip(missing, keys, elsewhere, strict=True):
                found[i] = None if there else self._long.why_not(key)
        return pb.ExistsReply(outcomes=[OUTCOME[one] for one in found])

    @typed
    async def Remove(self, request: pb.RemoveRequest, context: Context) -> pb.RemoveReply:
        place = await self.namespaces.place(request.namespace, request.group)
        tenant = tenant_of(context)
        keys = await self._long.keys(tenant, place, hashes_of(request.hashes))
        read, removed = await self._long.remove(tenant, keys)
        if self.pool is not None:  # a copy that is left could be fetched again, or is on its way
            removed |= await self.pool.replicas.drop(tenant, place.owner, keys, read)
            await self.pool.fetch.forgo(tenant, keys)
            removed |= (await self._long.remove(tenant, keys))[1]
        failpoint("remove.before_flush")
        if self.tiers is not None:  # last: where the disk takes nothing, it raises
            await self.tiers.flushed(keys)
        failpoint("remove.before_answer")
        return pb.RemoveReply(removed=len(removed))

    @typed
    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveReply:
        asking = self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        parents = parents_of(request, hashes)
        full = place.layout.block_tokens
        tokens = [full] * (len(hashes) - 1) + [last_tokens(request.last_tokens, place.layout)]
        check_name("writer_group", request.writer_group)
        chain = list(zip(hashes, parents, tokens, strict=True))
        fragment = fragment_of(request.fragment, place.layout)
        named, after = (place, chain, fragment, request.writer_group), after_of(request)
        followed = request.writer_group or request.hand_off or fragment != place.layout.whole
        reach = Tier.DRAM if followed else reach_of(asking, asked=request.hbm)

        def reserve() -> list[Reserved | None]:
            session = self.session(request.session, context)  # it may have ended in the line
            return self.store.reserve(session, *named, request.origin, reach, after)

        need = partial(self.store.wants.need, asking.tenant, *named, reach, after)
        reserved = await self.waiting.for_room(asking.tenant, reserve, need, room_patience(context))
        granted, existed = pb.ReserveReply.GRANTED, pb.ReserveReply.EXISTS
        reply = pb.ReserveReply(
            grants=[granted if one else existed for one in reserved],
            slot_offsets=[one.slot.offset if one else 0 for one in reserved],
            generations=[one.slot.generation if one else 0 for one in reserved],
            handles=[one.handle if one else b"" for one in reserved],
        )
        if request.hand_off:
            made = self.store.claims.for_hand_off
            reply.hand_offs.extend([made(one.slot) if one else b"" for one in reserved])
        return reply

    @typed
    async def Seal(self, request: pb.SealRequest, context: Context) -> pb.SealReply:
        session = self.session(request.session, context)
        handles = counted(request.handles, "handles")
        replicas, keys = copies_wanted(request.replicas), list[bytes]()
        if request.durable:
            self.check_ssd()
        if request.durable or replicas > 1:
            keys = [window.slot.key for window in self.store.claims.windows(session, handles)]
        results = self.store.seal(session, handles)
        reply = pb.SealReply(sealed=[SEALED[one] for one in results])
        if not keys:
            return reply
        whole = [key for key, one in zip(keys, results, strict=True) if one != "waiting"]
        if request.durable:
            await self.durable(whole)
        if replicas > 1:
            copies = await self.copied(whole, replicas, request.durable, context)
            reply.copies.extend([copies.get(key, 0) for key in keys])
        return reply

    @typed
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        session = self.session(request.session, context)
        self.store.abort(session, aborted_of(request), request.writer_group)
        return pb.AbortReply()

    @typed
    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenReply:
        session = self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        if request.HasField("read_ahead"):
            self._ahead.check(request.read_ahead.connections)
            fragment_of(request.read_ahead.fragment, place.layout)
        if request.unpinned:
            check_unpinned(request, maps=session.may_write)
        if request.stored_keys:
            return await self._open_stored(session, place, request, context)
        hashes = hashes_of(request.hashes)
        if request.hand_offs and len(request.hand_offs) != len(hashes):
            raise Invalid(f"{len(request.hand_offs)} hand_offs for {len(hashes)} hashes")
        hand_offs: Sequence[bytes] = request.hand_offs
        keys = await self._long.keys(session.tenant, place, hashes)
        if self.pool is not None and not request.lineage and (hand_offs or request.writer_node):
            group = (request.writer_group, request.writer_node)
            asked = Asked(session.tenant, place, hashes, keys, hand_offs, *group)
            hand_offs = await self.pool.follow.local(asked)
        followed = all(hand_offs) and len(hand_offs) > 0
        local = followed or request.lineage
        reach = reach_of(session, asked=request.hbm)
        async with self.brought(session, place, hashes, keys, context, local, reach):
            if request.unpinned:
                # In one go with its answer: nothing keeps these where they are.
                opened: Sequence[Opened | Miss] = self.store.look(place, keys, reach)
            else:
                told = (hand_offs, request.pin_ms, request.writer_group, reach)
                opened = await self._long.open(session, place, keys, *told)
        return self._opened_reply(session, place, opened, request)

    async def _open_stored(
        self, session: NodeSession, place: Place, request: pb.OpenRequest, context: Context
    ) -> pb.OpenReply:
        """For another node, which was told of these blocks by their stored keys."""
        if caller_of(context).role not in (Role.NODE, Role.OPEN):
            raise Denied("stored_keys are for nodes: a client names blocks by their hashes")
        if request.hashes or request.hand_offs or request.writer_group:
            raise Invalid("stored_keys: no hashes, hand_offs or writer_group beside them")
        named = stored_keys_of(request.stored_keys)
        keys = self.store.owned(session.tenant, place, named)
        async with self.brought(session, place, (), keys, context, local=True):
            opened = self.store.open_stored(session, place, keys, (), request.pin_ms)
        return self._opened_reply(session, place, opened, request)

    def _opened_reply(
        self, session: NodeSession, place: Place, opened: Sequence[Opened | Miss],
        request: pb.OpenRequest,
    ) -> pb.OpenReply:  # fmt: skip
        slots = [one.slot if isinstance(one, Opened) else None for one in opened]
        reply = opened_columns(opened, slots, request)
        sizes = Counter([slot.tokens for slot in slots if slot])
        size = sum(place.layout.block_bytes(tokens) * count for tokens, count in sizes.items())
        if session.may_write:  # else they go by a connection, which counts them
            self.counters.add("opened_bytes", size)
        if request.HasField("read_ahead"):
            part = fragment_of(request.read_ahead.fragment, place.layout)
            numbers = request.read_ahead.connections
            reply.ahead_blocks = self._ahead.send(session, numbers, slots, part)
        return reply

    @typed
    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseReply:
        session = self.session(request.session, context)
        handles = counted(request.handles, "handles")
        suspects = suspects_of(request.suspects, handles)
        held, slots = self.store.readers.close(session, handles)
        both = zip(handles, slots, strict=True)
        await self._suspects.look_at([slot for one, slot in both if slot and one in suspects])
        return pb.CloseReply(held=held)

    @typed
    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinReply:
        session = self.session(request.session, context)
        place = await self.namespaces.place(request.namespace, request.group)
        hashes = hashes_of(request.hashes)
        keys = await self._long.keys(session.tenant, place, hashes)
        reach = reach_of(session, asked=True)  # what is only held may stay there
        async with self.brought(session, place, hashes, keys, context, reach=reach):
            told = ((), request.pin_ms, "", reach)
            opened = await self._long.open(session, place, keys, *told)
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
        self.store.readers.renew(session, counted(request.handles, "handles"), request.pin_ms)
        return pb.RenewReply()

    @typed
    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinReply:
        session, used = self.session(request.session, context), used_of(request)
        if request.handles or not request.query_tokens:
            self.store.readers.unpin(session, counted(request.handles, "handles"))
        self.store.used(*used)
        return pb.UnpinReply()

    @typed
    async def Quarantine(
        self, request: pb.QuarantineRequest, context: Context
    ) -> pb.QuarantineReply:
        check_name("reason", request.reason)
        await self.namespaces.quarantine(request.namespace, request.reason)
        self.counters.add("quarantines")
        return pb.QuarantineReply()

    @asynccontextmanager
    async def brought(
        self,
        session: NodeSession,
        place: Place,
        hashes: Sequence[bytes],
        keys: Sequence[bytes],
        context: Context,
        local: bool = False,
        reach: Tier = Tier.DRAM,
    ) -> AsyncIterator[None]:
        """Inside it the blocks stored under `keys` are where readers can read them, if they fit:
        from HBM that readers do not reach, from SSD, and, unless one asks, from other nodes."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self.store.readers.kept(keys, reach))
            if self.hbm is not None and reach is not Tier.HBM:
                await stack.enter_async_context(self.hbm.brought(keys, patience(context)))
            if self.tiers is not None:
                # A disk that is late costs its own blocks: another node that asks would take one
                # that does not answer for dead, and do without what it has in memory too.
                await stack.enter_async_context(self.tiers.brought(keys, patience(context)))
            if not (self.pool is None or local or place.owner[0] in self.store.quarantined):
                coming = (session.tenant, place, hashes, keys, patience(context))
                came = await stack.enter_async_context(self.pool.fetch.brought(*coming))
                if self.tiers is not None:  # what stands there behind one that has come
                    await stack.enter_async_context(self.tiers.brought(came, patience(context)))
            self.session(session.token, context)  # it may have ended: nobody would end its pins
            yield

    def check_ssd(self) -> None:
        if self.tiers is None:
            raise Invalid("durable: this node has no SSD; start it with --ssd PATH:SIZE")

    async def durable(self, keys: Sequence[bytes]) -> None:
        """Return once all of these blocks survive a power loss, or raise."""
        assert self.tiers is not None, "`check_ssd` comes first"
        async with AsyncExitStack() as stack:
            if self.hbm is not None:
                await stack.enter_async_context(self.hbm.brought(keys))
            held = [self.store.blocks.index.held(key) for key in keys]
            slots = [slot for slot in held if slot is not None]
            if len(slots) < len(keys):
                raise not_durable("it was dropped meanwhile")
            await self.tiers.durable(slots)

    async def copied(
        self, keys: Sequence[bytes], replicas: int, durable: bool, context: Context
    ) -> dict[bytes, int]:
        """How many nodes have each of these blocks, once so many do or the caller waits no more."""
        if self.pool is None:
            return dict.fromkeys(keys, 1)
        told = (keys, replicas, durable, patience(context, COPY_SECONDS_MAX))
        return await self.pool.replicas.copied(tenant_of(context), *told)

    def session(self, token: bytes, context: Context) -> NodeSession:
        """The caller's session. A token of another tenant's is as unknown as any."""
        return self.sessions.find(token, tenant_of(context))
