"""Put, Get, Write and Read: blocks as streams of bytes, for callers that do not map the arena.

A stream holds at most one message of a caller's at a time, and the state it started from is looked
up again after every wait, because the world may have changed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.errors import AlreadyWritten, Invalid, Lapsed, OutOfRange, Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import PUT_CHUNK_BYTES_MAX, STREAMED_BLOCKS_MAX
from kvstore.memory.strips import Damaged, StripWriter, chunks
from kvstore.node.fetch import rows_max
from kvstore.node.forms import (
    OUTCOME,
    check_hash,
    copies_wanted,
    fragment_of,
    hashes_of,
    last_tokens,
    parent_of,
)
from kvstore.node.namespaces import Place
from kvstore.node.service import KVService
from kvstore.node.sessions import Session
from kvstore.node.waiting import room_patience
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import tenant_of
from kvstore.wire.v1 import kv_pb2 as pb

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

READ_WAIT_SECONDS = 30.0  # how long Read follows a writer that stands still
_POLL_SECONDS = 0.002


class Incoming:
    """The next part of a Put or Write stream, checked for size."""

    def __init__(self, stream: AsyncIterator[pb.PutRequest | pb.WriteRequest]):
        self._stream = stream

    async def part(self) -> pb.PutRequest | pb.WriteRequest | None:
        part = await anext(self._stream, None)
        if part is not None and len(part.data) > PUT_CHUNK_BYTES_MAX:
            raise Invalid(
                f"data of {len(part.data)} bytes; at most {PUT_CHUNK_BYTES_MAX} in one message"
            )
        return part

    async def data(self, missing: int) -> bytes:
        """The next piece of a payload of which `missing` bytes have not come."""
        part = await self.part()
        if part is None or part.WhichOneof("part") != "data":
            raise Invalid(f"the payload ended {missing} bytes before its announced end")
        if len(part.data) > missing:
            raise Invalid(
                f"{len(part.data)} bytes came where {missing} are left of the announced payload"
            )
        return part.data


class StreamingKVService(KVService):
    """The KV service with its byte streams."""

    @typed
    async def Put(self, stream: AsyncIterator[pb.PutRequest], context: Context) -> pb.PutReply:
        incoming, reply = Incoming(stream), pb.PutReply()
        wanted: list[tuple[bytes, int, bool]] = []  # of each block: key, replicas, durable
        with self._own_session(context) as session:
            while (part := await incoming.part()) is not None:
                if part.WhichOneof("part") != "block":
                    raise Invalid("data before its PutBlock, or more data than it announced")
                if len(reply.stored) >= STREAMED_BLOCKS_MAX:
                    raise Invalid(f"more than {STREAMED_BLOCKS_MAX} blocks in one Put")
                replicas = copies_wanted(part.block.replicas)
                stored, key = await self._put(session, part.block, incoming, context)
                reply.stored.append(stored)
                wanted.append((key, replicas, part.block.durable))
            reply.copies.extend(await self._copies(wanted, context))
        return reply

    @typed
    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncIterator[pb.GetReply]:
        place = await self.namespaces.place(request.namespace, request.group)
        layout, tenant = place.layout, tenant_of(context)
        hashes, run = hashes_of(request.hashes), rows_max(place)
        nowhere: set[bytes] = set()  # of the blocks that were asked for last
        with self._own_session(context) as session:
            for index, name in enumerate(hashes):
                if index % run == 0:
                    some = hashes[index : index + run]
                    nowhere = await self._bring(session, place, some, context)
                keys = self.store.keys(session.tenant, place, [name])
                local = keys[0] in nowhere
                async with self.brought(session, place, [name], keys, context, local):
                    found = self.store.exists(tenant, place, [name])[0]
                    opened = self.store.open(session, place, [name])[0] if found is None else found
                if isinstance(opened, Miss):
                    block = pb.GetBlock(index=index, outcome=OUTCOME[opened])
                    yield pb.GetReply(block=block)
                    continue
                slot, blocks = opened.slot, self.store.blocks
                if not blocks.examine(slot, layout):
                    self.store.readers.close(session, [opened.handle])
                    yield pb.GetReply(block=pb.GetBlock(index=index, outcome=pb.DAMAGED))
                    continue
                size = layout.block_bytes(slot.tokens)
                block = pb.GetBlock(
                    index=index, tokens=slot.tokens, payload_bytes=size, root=slot.root
                )
                yield pb.GetReply(block=block)
                # Bytes are read only while the pin holds, the first too: a slow caller loses it,
                # and what its slot holds then is another block, perhaps another tenant's.
                self.store.claims.pin(session, opened.handle, "the block that is being sent")
                async for piece in self._pieces(slot, layout, layout.whole):
                    yield pb.GetReply(data=piece)
                    self.store.claims.pin(session, opened.handle, "the block that is being sent")
                self.store.readers.close(session, [opened.handle])

    @typed
    async def Write(
        self, stream: AsyncIterator[pb.WriteRequest], context: Context
    ) -> pb.WriteReply:
        incoming = Incoming(stream)
        first = await incoming.part()
        if first is None or first.WhichOneof("part") != "target":
            raise Invalid("a Write begins with its target")
        target = first.target
        session = self.session(target.session, context)
        window = self.store.claims.window(session, target.handle, "handle")
        _check_in_dram(window.slot)
        place = self.namespaces.place_of(window.slot.owner)
        fragment = fragment_of(target.fragment, window.layout)
        if not window.fragment.covers(fragment):
            raise OutOfRange(f"{fragment} lies outside the window's {window.fragment}")
        per_strip = window.layout.strip_bytes(window.slot.tokens)
        _check_payload(target, fragment.layers * fragment.heads * per_strip, place)
        written = self.store.blocks.heads.written(window.slot, window.layout, fragment)
        if written is not None or any(fragment.overlaps(f) for f in window.writing):
            raise AlreadyWritten(f"{written or fragment} has been written; a strip is written once")
        window.writing += (fragment,)
        try:
            writer = self._writer(window.slot, window.layout, fragment)
            while writer.missing:
                data = await incoming.data(writer.missing)
                if len(data) == writer.missing and await incoming.part() is not None:
                    raise Invalid(f"more came than the announced {target.payload_bytes} bytes")
                self.store.claims.window(session, target.handle, "handle")
                self._came(session, data)
                writer.write(data)
        finally:
            window.moved(fragment)
        return pb.WriteReply()

    @typed
    async def Read(self, request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadReply]:
        session = self.session(request.session, context)
        slot = self.store.claims.pin(session, request.handle, "handle").slot
        _check_in_dram(slot)
        layout = self.namespaces.place_of(slot.owner).layout
        fragment = fragment_of(request.fragment, layout)
        for layer in range(fragment.layer_first, fragment.layer_first + fragment.layers):
            part = Fragment(layer, 1, fragment.head_first, fragment.heads)
            await self._landed(session, request.handle, slot, part)
            async for piece in self._pieces(slot, layout, part):
                yield pb.ReadReply(data=piece)
                self.store.claims.pin(session, request.handle, "handle")

    async def _put(
        self, session: Session, block: pb.PutBlock, incoming: Incoming, context: Context
    ) -> tuple[pb.PutReply.Stored, bytes]:
        """What came of it, and the block's stored key."""
        place = await self.namespaces.place(block.namespace, block.group)
        check_hash("hash", block.hash)
        name, parent = block.hash, parent_of(block.parent)
        tokens = last_tokens(block.tokens, place.layout)
        size = place.layout.block_bytes(tokens)
        _check_payload(block, size, place)
        if block.durable:
            self.check_ssd()
        chain, whole = [(name, parent, tokens)], place.layout.whole
        found = await self.waiting.for_room(
            session.tenant,
            lambda: self.store.reserve(session, place, chain, whole),
            lambda: self.store.wants.need(session.tenant, place, chain, whole),
            room_patience(context),
        )
        reserved = found[0]
        if reserved is None:
            missing = size
            while missing:
                missing -= len(await incoming.data(missing))
            keys = self.store.keys(session.tenant, place, [name])
            if block.durable:
                await self.durable(keys)
            return pb.PutReply.EXISTED, keys[0]
        writer = self._writer(reserved.slot, place.layout, whole)
        while writer.missing:
            data = await incoming.data(writer.missing)
            self.store.claims.window(session, reserved.handle, "the block that is being put")
            self._came(session, data)
            writer.write(data)
        key = reserved.slot.key
        sealed = self.store.seal(session, [reserved.handle])[0]
        if block.durable:
            await self.durable([key])
        return pb.PutReply.STORED if sealed == "sealed" else pb.PutReply.EXISTED, key

    async def _bring(
        self, session: Session, place: Place, hashes: Sequence[bytes], context: Context
    ) -> set[bytes]:
        """Bring what a stream comes to next: one after the other, each would cost a round trip.
        Nothing of it is held, since a caller may be slow; what is dropped is brought again. The
        keys of what nobody has, of which nobody need be asked again."""
        keys = self.store.keys(session.tenant, place, hashes)
        async with self.brought(session, place, hashes, keys, context):
            pass
        return set() if self.pool is None else await self.pool.fetch.nowhere(keys)

    async def _copies(
        self, wanted: Sequence[tuple[bytes, int, bool]], context: Context
    ) -> list[int]:
        """Nodes that have each block that was put; nothing where nobody asked for more than one."""
        kinds = {(replicas, durable) for _, replicas, durable in wanted if replicas > 1}
        copies = dict.fromkeys((key for key, _, _ in wanted), 1)
        for replicas, durable in sorted(kinds):
            keys = [key for key, *kind in wanted if kind == [replicas, durable]]
            copies |= await self.copied(keys, replicas, durable, context)
        return [copies[key] for key, _, _ in wanted] if kinds else []

    async def _pieces(
        self, slot: Slot, layout: SlotLayout, fragment: Fragment
    ) -> AsyncIterator[bytes]:
        try:
            for piece in chunks(
                self.store.blocks.view, self.store.blocks.heads, slot, layout, fragment
            ):
                self.counters.add("get_bytes", len(piece))
                yield piece
        except Damaged:
            self.store.blocks.examine(slot, layout)
            raise Lapsed(
                "the block was damaged while it was read: ask again, or recompute"
            ) from None

    def _came(self, session: Session, data: bytes) -> None:
        """A piece of a payload. An empty one is none: it would keep a window for ever."""
        if data:
            self.store.stirred(session)
            self.counters.add("put_bytes", len(data))

    async def _landed(self, session: Session, handle: bytes, slot: Slot, part: Fragment) -> None:
        """Wait until a layer of a filling block has been written, while the pin holds."""
        layout = self.namespaces.place_of(slot.owner).layout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_WAIT_SECONDS
        while slot.state is State.FILLING:
            if self.store.blocks.heads.unwritten(slot, layout, part) is None:
                return
            if loop.time() > deadline:
                raise Unavailable(f"{part} was not written within {READ_WAIT_SECONDS:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
            self.store.claims.pin(session, handle, "handle")
        if slot.state is not State.SEALED:
            raise Lapsed("the block was given up by its writer, or removed: ask for it again")

    def _writer(self, slot: Slot, layout: SlotLayout, fragment: Fragment) -> StripWriter:
        blocks = self.store.blocks
        return StripWriter(blocks.view, blocks.heads, slot, layout, fragment)

    @contextmanager
    def _own_session(self, context: Context) -> Iterator[Session]:
        """A session that lasts as long as one call, so that a broken stream leaves nothing."""
        session = self.sessions.begin(tenant_of(context), "one call")
        try:
            yield session
        finally:
            self.sessions.end(session)
            self.store.end(session)


def _check_in_dram(slot: Slot) -> None:
    if slot.tier is not Tier.DRAM:
        raise Invalid(
            "the block is in HBM, whose bytes go by no stream: Open or Reserve it without `hbm`"
        )


def _check_payload(given: pb.PutBlock | pb.WriteRequest.Target, size: int, place: Place) -> None:
    if given.payload_bytes != size:
        raise Invalid(f"payload_bytes is {given.payload_bytes}; these tokens take {size}")
    if given.dtype and given.dtype != place.stored:
        raise Invalid(f"dtype is {given.dtype}; the namespace stores {place.stored}")
