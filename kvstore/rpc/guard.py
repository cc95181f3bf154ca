"""Every call passes here: who calls is asked, and a place is found, before a message is read.

gRPC tells a server whose connection it is only with the call's context, which a method gets after
its first message. So methods that take one message are served here as if they took a stream of
them, and read it themselves once the caller is known and has a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from kvstore import traces
from kvstore.errors import Invalid, KVStoreError, Unauthenticated, Unavailable
from kvstore.limits import RPC_UNARY_SECONDS
from kvstore.rpc.admission import Admission
from kvstore.rpc.identity import CALLER, Caller, Door
from kvstore.rpc.status import refuse

Handler: TypeAlias = Any  # grpc.RpcMethodHandler: grpc has no types

_LOOK_SECONDS = 0.5  # between two looks at whether the callers of open streams still may


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits calls, or refuses them by a typed status."""

    def __init__(self, door: Door, admission: Admission) -> None:
        self._door, self._admission = door, admission
        self._guarded: dict[str, Handler] = {}  # by method
        self._streams: dict[asyncio.Task[None], Caller] = {}
        self._ended: dict[asyncio.Task[None], KVStoreError] = {}  # by us, and why

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], details: Any
    ) -> Handler:
        method = details.method
        if method not in self._guarded:
            handler = await continuation(details)
            if handler is None:
                return None  # no service has it
            self._guarded[method] = self._guard(method, handler)
        return self._guarded[method]

    async def keep(self) -> None:
        """End the streams of callers whose token is revoked or over, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for task, caller in list(self._streams.items()):
                if not self._door.still(caller):
                    self._end(task, Unauthenticated("the token was revoked, or it is over"))

    def _guard(self, method: str, handler: Handler) -> Handler:
        serve = _behaviour(handler)

        async def behave(requests: Any, context: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None, "a call runs in a task of its own"
            try:
                caller = await self._admit(method, handler, context, task)
                incoming = requests
                if not handler.request_streaming:
                    incoming = await _message(context)
                    self._admission.count_named(caller, method, incoming)
                with traces.span(method.rpartition("/")[2], _parent(context)):
                    return await serve(incoming, context)
            except KVStoreError as error:
                refuse(context, error)
            except asyncio.CancelledError:
                if task not in self._ended:
                    raise
                # gRPC tells the caller of a task that was cancelled nothing, and lets it wait.
                task.uncancel()
                refuse(context, why := self._ended[task])
                if isinstance(why, Unavailable):
                    # What the call has done by now is not known: that is no answer to it.
                    context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
            return None  # a status other than OK goes without a message

        answered_by = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        deserializer = _checked(handler.request_deserializer)
        return answered_by(behave, deserializer, handler.response_serializer)

    async def _admit(
        self, method: str, handler: Handler, context: Any, task: asyncio.Task[None]
    ) -> Caller:
        caller = self._door.admit(method, context)
        CALLER.set(caller)
        self._admission.count(caller.who, method)
        if handler.request_streaming or handler.response_streaming:
            self._admission.take_stream(method, caller.who, task)
            if caller.token:
                self._streams[task] = caller
                task.add_done_callback(self._streams.pop)
        else:
            late = Unavailable(f"the call was not over within {RPC_UNARY_SECONDS:.0f} s")
            await self._admission.take_turn(caller.who, task, lambda: self._end(task, late))
        return caller

    def _end(self, task: asyncio.Task[None], why: KVStoreError) -> None:
        """Hang up on a caller, who learns why if its call is not on its way back already."""
        if task not in self._ended:
            self._ended[task] = why
            task.add_done_callback(self._ended.pop)
        task.cancel()


def _parent(context: Any) -> str:
    """The span of whoever calls, if it says one."""
    if not traces.on():
        return ""
    shown = dict(context.invocation_metadata() or ()).get(traces.KEY, "")
    return shown if isinstance(shown, str) else ""


def _behaviour(handler: Handler) -> Callable[[Any, Any], Awaitable[Any]]:
    """The method itself, awaited to its end; what it streams is sent."""
    method = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    if not handler.response_streaming:
        return method  # type: ignore[no-any-return]

    async def stream(incoming: Any, context: Any) -> None:
        replies = method(incoming, context)
        if not hasattr(replies, "__aiter__"):
            await replies  # it sends by itself, as gRPC's own services do
            return
        async with aclosing(replies):
            async for reply in replies:
                await context.write(reply)

    return stream


async def _message(context: Any) -> Any:
    found = await context.read()
    if found is grpc.aio.EOF:
        raise Invalid("the call ended without its message")
    return found


def _checked(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A message that cannot be read is its sender's mistake, not a bug of ours."""
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise Invalid("a message is not what this method takes: compare proto/") from None

    return read
