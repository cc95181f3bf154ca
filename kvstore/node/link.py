"""A session with one peer for one tenant: calls that end in time, and data connections.

What a peer says of itself is believed as far as its record in the metadata goes: it is called where
that says, and is who that says, or it is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np

from kvstore.clock import Clock
from kvstore.config import Credentials
from kvstore.errors import KVStoreError, Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import CONTACT_BYTES_MAX
from kvstore.metadata.records import NodeRecord
from kvstore.node.ucx_way import UcxWay
from kvstore.rpc.channel import open_async_channel
from kvstore.rpc.identity import TENANT_KEY
from kvstore.rpc.status import typed_errors
from kvstore.rpc.tls import Renewing, data_client
from kvstore.transfer.landing import Landing
from kvstore.transfer.lanes import Lanes
from kvstore.transfer.probe import Probe
from kvstore.transfer.protocol import Mask, Slots
from kvstore.transfer.term import Term
from kvstore.wire.v1 import directory_pb2_grpc, kv_pb2, kv_pb2_grpc

T = TypeVar("T")

# A reader whose holder has died has its next answer within a second: one of these passes, and
# whatever is asked after that is asked of another. (Where many sessions begin it may wait for its
# turn to begin one: `peers.TURN_SECONDS`.)
CALL_SECONDS = 0.5  # that a peer may take to answer a call
STALL_SECONDS = 0.5  # that it may move no byte


class Link:
    """Made by `Peers`; used once `begin` has returned."""

    def __init__(
        self,
        record: NodeRecord,
        tenant: str,
        label: str,
        threads: Executor,
        greeters: Executor,
        clock: Clock,
        credentials: Credentials,
        ucx: UcxWay | None,
    ) -> None:
        self.node_id, self.epoch, self.address = record.node_id, record.epoch, record.address
        self._threads, self._greeters = threads, greeters
        self._clock, self._tls = clock, credentials.tls
        self._channel = open_async_channel(record.address, credentials)
        self._named = ((TENANT_KEY, tenant),)
        self.kv = kv_pb2_grpc.KVStub(self._channel)
        self.directory = directory_pb2_grpc.DirectoryStub(self._channel)
        self._stream = self.kv.Session(kv_pb2.SessionRequest(label=label), metadata=self._named)
        self.session, self.used = b"", clock.now()
        self._lanes: Lanes | None = None
        self._broken, self._ucx = False, ucx
        self._working = 0  # threads that use its data connections

    async def begin(self) -> None:
        """Raises a `KVStoreError` where there is no session to be had."""
        with typed_errors(self.address):
            event = await self._stream.read()
        if event in (None, grpc.aio.EOF) or not event.HasField("opened"):
            raise Unavailable(f"node {self.address} began no session")
        self._listening = asyncio.create_task(self._listen())
        opened = event.opened
        if opened.node_id != self.node_id:
            raise Unavailable(f"{self.address} is node {opened.node_id}, not {self.node_id}")
        self.session = opened.session
        where = _beside(self.address, opened.data_address)
        tls = None if self._tls is None else Renewing(self._tls, data_client).latest
        connection = (where, opened.session, opened.data_token, STALL_SECONDS, tls)
        self._lanes = await self._in(self._greeters, Lanes, *connection)
        if self._ucx is not None:
            self._ucx.begin(connection, self.in_thread)

    async def _listen(self) -> None:
        """To the session's last word: with words unread, gRPC does not say that it is over."""
        with suppress(grpc.RpcError):
            while await self._stream.read() is not grpc.aio.EOF:
                pass  # it drains: the roster says so too

    @property
    def lanes(self) -> Lanes:
        assert self._lanes is not None, "a link is used once it is begun"
        return self._lanes

    @property
    def alive(self) -> bool:
        return not (self._broken or self._stream.done())

    @property
    def busy(self) -> bool:
        """Whether blocks are on their way over it."""
        return self._working > 0

    async def call(
        self, method: Callable[..., Any], request: Any, seconds: float = CALL_SECONDS
    ) -> Any:
        """One unary call; errors come out typed."""
        self.used = self._clock.now()
        try:
            with typed_errors(self.address):
                reply = await method(request, timeout=seconds, metadata=self._named)
            if reply is None:  # gRPC's word for bytes that are no message of this kind
                raise Unavailable(f"what node {self.address} answered cannot be read")
            return reply
        except Unavailable:
            # What the network swallowed is sent again ever later, long after it is well: a new
            # connection is not held up so.
            self._broken = True
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable(f"the link to node {self.address} was closed") from None

    async def pull(self, layout: SlotLayout, slots: Slots, landing: Landing, term: Term) -> Mask:
        """Whole blocks into a landing; which of them came and are proven. Raises `Unavailable`.

        Cancelled, it ends when nothing writes to the landing any more.
        """
        if self._ucx is not None:
            moved = await self._ucx.pull(layout, slots, landing, partial(self._pull, term))
            if moved is not None:
                return moved
        return await self._pull(term, self.lanes, layout, slots, landing)

    async def _pull(
        self, term: Term, lanes: Lanes, layout: SlotLayout, slots: Slots, landing: Landing
    ) -> Mask:
        given = (layout, slots, layout.whole, landing, np.arange(len(slots)), term)
        return await self.in_thread(lanes.pull, *given, term=term)

    async def probe(self) -> dict[str, Probe | KVStoreError]:
        """What each transport to the peer can do. Cancelled, it ends at once.

        Of ucx only whether it works is known: nothing moves over it but blocks of handles."""
        term, found = Term(), dict[str, Probe | KVStoreError]()
        try:
            given = (self.lanes.probe, CONTACT_BYTES_MAX, term)
            found["tcp"] = await self.in_thread(*given, term=term)
        except KVStoreError as error:
            found["tcp"] = error
        if self._ucx is not None and self._ucx.failure is not None:
            found["ucx"] = self._ucx.failure
        return found

    async def in_thread(self, work: Callable[..., T], *given: Any, term: Term | None = None) -> T:
        """Work that waits for the data connections, and may write to memory that is another's once
        this has ended: so it does not end before the work does, cancelled or not. What has a term,
        is cancelled and has not begun is never done, and this ends at once."""
        return await self._in(self._threads, work, *given, term=term)

    async def _in(
        self, threads: Executor, work: Callable[..., T], *given: Any, term: Term | None = None
    ) -> T:
        self.used = self._clock.now()
        self._working += 1
        if term is not None:
            term.waits = True
        in_line = threads.submit(_begun, term, partial(work, *given))
        future = asyncio.wrap_future(in_line)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if term is not None:
                term.end()
                if in_line.cancel():
                    raise
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            future.exception()  # nobody else asks for it
            raise
        finally:
            self._working -= 1
            self.used = self._clock.now()

    def give_up(self) -> None:
        """Its peer does not do its part: whoever wants a link from now on gets another."""
        self._broken = True

    async def close(self) -> None:
        self._stream.cancel()
        if self._ucx is not None:
            await self._ucx.close()
        if self._lanes is not None:
            await self.in_thread(self._lanes.close)
        await self._channel.close()


def _begun(term: Term | None, work: Callable[[], T]) -> T:
    if term is not None:
        term.waits = False
    return work()


def _beside(address: str, data_address: str) -> str:
    """Where its data connections go: the peer names the port, and no other host than its own."""
    port = data_address.rpartition(":")[2]
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise Unavailable(f"node {address} names no port for data: {data_address[:64]!r}")
    return f"{address.rpartition(':')[0]}:{port}"
