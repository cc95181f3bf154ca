"""The server's half of `kvstore.rpc.socket_frames`: one connection, one call of it at a time.

A call passes the same admission as one that comes over gRPC, before more of its message is received
than a small buffer holds, and is over when its answer has left or its caller has hung up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvstore import traces
from kvstore.errors import Invalid, KVStoreError, SessionEnded
from kvstore.limits import RPC_MESSAGE_BYTES_MAX, SOCKET_CALL_BYTES
from kvstore.rpc.admission import Admission
from kvstore.rpc.identity import CALLER, Caller
from kvstore.rpc.socket_frames import ANSWER, CALL, METHODS, OK, SERVICE
from kvstore.rpc.status import ERROR_KEY, RETRY_KEY, refuse

log = logging.getLogger(__name__)


_NAMES = [f"/{SERVICE}/{name}" for name, _, _ in METHODS]  # as gRPC calls the methods
_NOTHING_MORE = memoryview(bytearray(1))  # room for what shall not come: reading tells of the end


class SocketContext:
    """What a method may ask and tell of its call, as it does of gRPC's."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailers: dict[str, str] = {}

    def time_remaining(self) -> float:
        return self._deadline - time.monotonic()

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailers: Sequence[tuple[str, str]]) -> None:
        self.trailers = dict(trailers)


class SocketCaller(asyncio.BufferedProtocol):
    """The connection of a caller who has shown who it is; `may_call` says whether it still may."""

    def __init__(
        self,
        service: object,
        admission: Admission,
        caller: Caller,
        may_call: Callable[[], bool],
    ) -> None:
        self._service, self._admission = service, admission
        self._caller, self._may_call = caller, may_call
        self._begin = bytearray(SOCKET_CALL_BYTES)  # a call's head, and the message if it is short
        self._message: bytearray | None = None  # where the rest of a longer one goes
        self._filled = 0
        self._unread = 0  # bytes of the message that are not here yet
        self._whole: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        self._sent.set()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(1, 0)  # with 0, TLS pauses for what it has sent already

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self.over.done():
            self.over.set_result(None)

    def pause_writing(self) -> None:
        self._sent.clear()

    def resume_writing(self) -> None:
        self._sent.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._message is not None:
            return memoryview(self._message)[self._filled :] or _NOTHING_MORE
        if self._unread:
            return memoryview(self._begin)[: self._unread]
        return _NOTHING_MORE if self._task is not None else memoryview(self._begin)[self._filled :]

    def buffer_updated(self, came: int) -> None:
        if self._unread:
            self._unread -= came
        self._filled += came
        if self._whole is not None:
            if not self._unread:
                self._whole.set_result(None)
                self._whole = None
            return
        if self._task is not None:
            self._hang_up("another call before the answer to the last")
            return
        if self._filled < CALL.size:
            return
        size, method, traced, millis = CALL.unpack_from(self._begin)
        here = self._filled - CALL.size
        wrong = size > RPC_MESSAGE_BYTES_MAX or method >= len(METHODS)
        if wrong or here > size or traced > min(size, traces.PARENT_BYTES):
            self._hang_up("what is no call")
            return
        if here < size:
            if self._filled < len(self._begin):
                return  # the rest of it finds room here
            self._transport.pause_reading()  # until it is admitted, or refused
            self._unread = size - here
        self._task = asyncio.get_running_loop().create_task(
            self._serve(size, method, traced, millis)
        )

    def _hang_up(self, why: str) -> None:
        log.info("a caller on the socket sent %s", why)
        self._transport.abort()

    async def _serve(self, size: int, method: int, traced: int, millis: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        context = SocketContext(millis / 1e3)
        CALLER.set(self._caller)
        try:
            if not self._may_call():
                raise SessionEnded("the session of this connection is over")
            self._admission.count(self._caller.who, _NAMES[method])
            await self._admission.take_turn(self._caller.who, task, self._transport.abort)
            message = await self._read(size)
            parent = message[size - traced :].decode("ascii", "replace")
            with traces.span(METHODS[method][0], parent):
                body = await self._answer(message[: size - traced], method, context)
        except KVStoreError as error:
            refuse(context, error)
            body = b""
        if self._unread:
            await self._rest()  # of a call that was refused, and is forgotten
        if context.code is not grpc.StatusCode.OK:
            body = f"{context.trailers.get(ERROR_KEY, '')}\n{context.details}".encode()
        retry = int(context.trailers.get(RETRY_KEY, "0"))
        code = int(context.code.value[0])
        self._transport.write(ANSWER.pack(len(body), code, 0, retry) + body)
        await self._sent.wait()
        self._task, self._message, self._filled = None, None, 0

    async def _read(self, size: int) -> bytes:
        """The message, of which the beginning is here."""
        here = memoryview(self._begin)[CALL.size : min(self._filled, CALL.size + size)]
        if len(here) == size:
            return bytes(here)
        self._message = bytearray(size)
        self._message[: len(here)] = here
        self._filled = len(here)
        await self._rest()
        return bytes(self._message)

    async def _rest(self) -> None:
        """Return once nothing of the message is unread."""
        self._whole = asyncio.get_running_loop().create_future()
        self._transport.resume_reading()
        await self._whole

    async def _answer(self, message: bytes, method: int, context: SocketContext) -> bytes:
        name, request_type, _ = METHODS[method]
        try:
            request = request_type.FromString(message)
        except DecodeError:
            raise Invalid("a message is not what this method takes: compare proto/") from None
        self._admission.count_named(self._caller, _NAMES[method], request)
        try:
            async with asyncio.timeout(context.time_remaining()):
                reply = await getattr(self._service, name)(request, context)
        except TimeoutError:
            context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
            return b""
        return b"" if reply is None else bytes(reply.SerializeToString())


assert grpc.StatusCode.OK.value[0] == OK
