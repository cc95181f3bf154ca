"""A server of every service of proto/, whose methods say who called and answer nothing else.

The real server, its guard, its TLS and the real tenants of a node are what is tested with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from kvstore.config import TlsConfig
from kvstore.metadata import open_metadata
from kvstore.metadata.tenants import Tenants
from kvstore.rpc.identity import Caller, caller_of
from kvstore.rpc.server import Server
from tests.auth.methods import METHODS, Method


class Desk:
    """Serves from a thread of its own; `seen` are the callers that got in, latest last."""

    def __init__(self, tls: TlsConfig | None, database: Path) -> None:
        self._tls, self._database = tls, database
        self.seen: list[tuple[str, Caller]] = []
        self.address = ""
        self.tenants: Tenants | None = None

    async def run(self, ready: Callable[[], None], ended: asyncio.Event) -> None:
        metadata = open_metadata(str(self._database))
        self.tenants = Tenants(metadata)
        await self.tenants.load()
        services = sorted({one.service for one in METHODS})
        server = Server(
            "127.0.0.1:0",
            {name: self._registers(name) for name in services},
            tls=self._tls,
            tenancy=self.tenants,
        )
        await server.start()
        self.address = server.address
        keeping = asyncio.create_task(self.tenants.keep())
        ready()
        await ended.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await server.stop(0)
        await metadata.close()

    def _registers(self, service: str) -> Callable[[grpc.aio.Server], None]:
        handlers = {one.name: self._handler(one) for one in METHODS if one.service == service}
        generic = grpc.method_handlers_generic_handler(service, handlers)
        return lambda server: server.add_generic_rpc_handlers([generic])

    def _handler(self, method: Method) -> Any:
        async def answer(_: Any, context: Any) -> Any:
            self.seen.append((method.path, caller_of(context)))
            return method.reply()

        async def stream(_: Any, context: Any) -> AsyncIterator[Any]:
            self.seen.append((method.path, caller_of(context)))
            yield method.reply()
            await asyncio.Event().wait()

        streams = method.descriptor.client_streaming, method.descriptor.server_streaming
        made = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[streams]
        replies = method.reply.SerializeToString
        return made(stream if streams[1] else answer, method.request.FromString, replies)


@contextmanager
def serving(tls: TlsConfig | None, database: Path) -> Iterator[Desk]:
    desk, up = Desk(tls, database), threading.Event()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(desk.run(up.set, ended),))
    thread.start()
    try:
        assert up.wait(30), "the server did not start"
        yield desk
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
        loop.close()
