"""A service that answers calls on sockets, by each way in which callers reach it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from kvstore.client.call_sockets import at_data_port, on_this_host
from kvstore.config import TlsConfig
from kvstore.errors import Overloaded
from kvstore.node.data_calls import DataCalls
from kvstore.node.sessions import Sessions
from kvstore.rpc.access import Role
from kvstore.rpc.admission import Admission
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import Caller, tenant_of
from kvstore.rpc.socket_client import Connect
from kvstore.rpc.socket_frames import WELCOME
from kvstore.rpc.socket_server import SocketCaller
from kvstore.rpc.tls import Renewing, data_client, data_server
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer.frames import CALLS_KIND
from kvstore.wire.v1 import kv_pb2 as pb

SECONDS = 20.0
TOKEN = b"t" * 16


class Service:
    """Answers a Match by what its first hash says."""

    def __init__(self) -> None:
        self.closed: list[bytes] = []
        self.begun = 0
        self.cancelled = 0
        self.left = 0.0

    @typed
    async def Match(self, request: pb.MatchRequest, context: Any) -> pb.MatchReply:
        what = request.hashes[0] if request.hashes else b""
        self.left = context.time_remaining()
        self.begun += 1
        if what == b"refuse":
            raise Overloaded("no room", 77)
        if what == b"bug":
            raise RuntimeError("what a caller must not see")
        if what == b"wait":
            try:
                await asyncio.sleep(SECONDS)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        assert tenant_of(context) == "a tenant"
        return pb.MatchReply(blocks=len(request.hashes))

    @typed
    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenReply:
        return pb.OpenReply(handles=request.hashes)

    @typed
    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseReply:
        self.closed.extend(request.handles)
        return pb.CloseReply()


class Server(ABC):
    """A service in a thread with a loop of its own; a kind of server is how one connects."""

    connect: Connect

    def __init__(self) -> None:
        self.service, self.admission = Service(), Admission([])
        self.session_lives = True
        self.connections = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self.loop).result(SECONDS)

    @abstractmethod
    async def _begin(self) -> None: ...

    def _answering(self) -> SocketCaller:
        self.connections += 1
        caller = Caller(Role.CLIENT, "test", "a tenant")
        return SocketCaller(self.service, self.admission, caller, lambda: self.session_lives)

    def freeze(self) -> None:
        """Answer nothing until it is thawed, as a stopped process does."""
        self._thawed = threading.Event()
        self.loop.call_soon_threadsafe(self._thawed.wait, SECONDS)

    def thaw(self) -> None:
        self._thawed.set()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class OnThisHost(Server):
    """Behind a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connect = on_this_host(os.fspath(path), TOKEN)
        super().__init__()

    async def _begin(self) -> None:
        self._server = await asyncio.start_unix_server(self._attend, os.fspath(self.path))

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(len(TOKEN)) != TOKEN:
            writer.close()
            return
        writer.write(WELCOME)
        await writer.drain()
        made = self._answering()
        made.connection_made(writer.transport)
        writer.transport.set_protocol(made)
        await made.over


class AtDataPort(Server):
    """As a data port hands its callers over, with or without TLS."""

    def __init__(self, tls: TlsConfig | None) -> None:
        self._tls = tls
        self.sessions = Sessions()
        self.session = self.sessions.begin("a tenant", "test")
        super().__init__()

    async def _begin(self) -> None:
        self._calls = DataCalls(self.sessions, lambda _: self._answering(), Telemetry(NODE))
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        port = self._server.getsockname()[1]
        tls = None if self._tls is None else Renewing(self._tls, data_client).latest
        who = (self.session.token, self.session.data_token)
        self.connect = at_data_port(f"127.0.0.1:{port}", *who, tls)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            peer, _ = await loop.sock_accept(self._server)
            assert await loop.sock_recv(peer, 1) == CALLS_KIND
            await self._calls.greet(peer, None if self._tls is None else data_server(self._tls))
