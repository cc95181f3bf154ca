"""How many calls a server receives at once, which bounds what all callers together make it hold.

A call is admitted before its first message is received: until then flow control leaves all but a
window's worth of the message with the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

import grpc

from kvstore.errors import Overloaded
from kvstore.limits import RPC_BULK_MAX, RPC_UNARY_MAX, RPC_UNARY_SECONDS
from kvstore.rpc.status import refuse

Handler: TypeAlias = Any  # grpc.RpcMethodHandler: grpc has no types

_RETRY_MS = 200


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Unary calls wait for their turn, which is bounded in time; streams of bulk bytes beyond the
    limit are refused.

    Other streams, which carry little, pass: `maximum_concurrent_rpcs` bounds them.
    """

    def __init__(self, bulk: Collection[str]) -> None:
        self._bulk = frozenset(bulk)  # full method names
        self._streams = 0
        self._turn = asyncio.Semaphore(RPC_UNARY_MAX)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], details: Any
    ) -> Handler:
        handler = await continuation(details)
        task = asyncio.current_task()  # ends with the call, however that ends
        assert task is not None, "an interceptor runs in its call's task"
        if handler is None:
            return None
        if details.method in self._bulk:
            if self._streams >= RPC_BULK_MAX:
                return _REFUSED
            self._streams += 1
            task.add_done_callback(self._stream_ended)
        elif not (handler.request_streaming or handler.response_streaming):
            await self._turn.acquire()
            # A caller may begin a call and never send its message: its turn ends all the same.
            end = asyncio.get_running_loop().call_later(RPC_UNARY_SECONDS, task.cancel)
            task.add_done_callback(lambda _: self._unary_ended(end))
        return handler

    def _stream_ended(self, _: object) -> None:
        self._streams -= 1

    def _unary_ended(self, end: asyncio.TimerHandle) -> None:
        end.cancel()
        self._turn.release()


async def _refuse(_: object, context: Any) -> None:
    text = f"{RPC_BULK_MAX} streams of blocks are open, the most a node serves at once"
    refuse(context, Overloaded(text, _RETRY_MS))


_REFUSED = grpc.stream_stream_rpc_method_handler(_refuse)  # reads nothing before it refuses
