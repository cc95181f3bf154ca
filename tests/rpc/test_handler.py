"""What a method was sent is let go of with its call, however the call ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from kvstore.errors import Invalid
from kvstore.rpc.handler import typed

SECONDS = 20.0


class Message:
    """One that can be seen to be gone."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class Service:
    """It does not hear a call to its end."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.heard: list[weakref.ref[Message]] = []

    @typed
    async def tell(self, messages: AsyncIterator[Message], context: Any) -> bytes:
        self.heard.append(weakref.ref(await anext(messages)))
        if self._error is not None:
            raise self._error
        return b""


async def unended() -> AsyncIterator[bytes]:
    """A message, and never the end: who writes more as its call ends may see that fail."""
    yield b"one"
    await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, Invalid("it is wrong"), ZeroDivisionError()])
def test_a_message_of_a_stream_that_was_not_heard_out_waits_for_no_garbage_collector(
    error: Exception | None,
) -> None:
    service = Service(error)
    method = grpc.stream_unary_rpc_method_handler(service.tell, request_deserializer=Message)

    async def run() -> None:
        server = grpc.aio.server()
        told = grpc.method_handlers_generic_handler("Service", {"tell": method})
        server.add_generic_rpc_handlers((told,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary("/Service/tell")(unended())
            assert (await call.code() is grpc.StatusCode.OK) == (error is None)
            async with asyncio.timeout(SECONDS):
                while not service.heard or service.heard[0]() is not None:
                    await asyncio.sleep(0.01)
        await server.stop(None)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
