"""Connections to the data port on which sessions of other hosts make calls.

They are what the Unix socket's are to callers of this host (`kvstore.rpc.socket_frames`): a call
costs half or less of what it does over gRPC. Each belongs to one session, which may have a few and
must have shown who it is in time; it ends with its session.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from kvstore.errors import Unavailable
from kvstore.limits import DATA_GREETING_SECONDS, SOCKET_CALLS_MAX
from kvstore.node.sessions import Session, Sessions
from kvstore.rpc.socket_server import SocketCaller
from kvstore.telemetry import Telemetry
from kvstore.transfer.frames import CALLS_MAGIC, HELLO, WELCOME, Welcome
from kvstore.transfer.stream import prepare

log = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0  # how often a connection looks whether its session is over

Answering = Callable[[Session], SocketCaller]


class DataCalls:
    """Attends connections, one a task of the node's loop."""

    def __init__(self, sessions: Sessions, answering: Answering, counters: Telemetry) -> None:
        self._sessions, self._answering, self._counters = sessions, answering, counters
        self._tasks: set[asyncio.Task[None]] = set()

    async def greet(self, peer: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Let a caller in, who is then attended until it hangs up; or hang up, and raise."""
        greeting, loop = _Greeting(), asyncio.get_running_loop()
        transport: asyncio.Transport | None = None
        try:
            prepare(peer)
            peer.setblocking(False)
            async with asyncio.timeout(DATA_GREETING_SECONDS):
                made = await loop.connect_accepted_socket(lambda: greeting, peer, ssl=tls)
                transport = made[0]
                said = await greeting.said
            # From here on nothing is waited for until the caller is attended: its end is heard.
            if greeting.over:
                raise Unavailable("it hung up before it was let in")
            session = self._let_in(said)
        except BaseException:
            peer.close() if transport is None else transport.abort()
            raise
        answering = self._answering(session)
        transport.write(WELCOME.pack(CALLS_MAGIC, Welcome.COME_IN, 0))
        transport.set_protocol(answering)
        answering.connection_made(transport)
        task = asyncio.create_task(self._attend(transport, session, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _let_in(self, said: bytes) -> Session:
        magic, name, token = HELLO.unpack(said)
        session = self._sessions.by_data_token(name, token) if magic == CALLS_MAGIC else None
        if session is None or session.calling >= SOCKET_CALLS_MAX:
            self._counters.add("data_refusals")
            raise Unavailable("a caller was not let in")
        session.calling += 1
        return session

    async def _attend(
        self, transport: asyncio.Transport, session: Session, answering: SocketCaller
    ) -> None:
        try:
            while session.streaming and not answering.over.done():
                await asyncio.wait([answering.over], timeout=_IDLE_SECONDS)
        finally:
            transport.abort()
            session.calling -= 1


class _Greeting(asyncio.Protocol):
    """What a caller says first, and nothing after it until it is answered."""

    def __init__(self) -> None:
        self.said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.over = False
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        if len(self._got) >= HELLO.size and not self.said.done():
            if len(self._got) == HELLO.size:
                self.said.set_result(self._got)
            else:
                self.said.set_exception(Unavailable("it said more than who it is"))

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        if not self.said.done():
            self.said.set_exception(Unavailable("it hung up before it said who it is"))
