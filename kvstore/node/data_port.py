"""The port at which the node moves blocks' bytes to and from other hosts, over plain sockets.

Each connection belongs to one session and has a thread of its own (`data_connection`). They are
bounded in number, and no tenant has all of them; a peer that stalls is hung up on, and a session's
end ends its connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from kvstore.core.turns import Places
from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.limits import (
    DATA_CONNECTIONS_MAX,
    DATA_GREETING_SECONDS,
    DATA_GREETINGS_MAX,
    DATA_SESSION_CONNECTIONS_MAX,
    STALL_SECONDS,
)
from kvstore.memory.arena import Arena
from kvstore.node.data_calls import Answering, DataCalls
from kvstore.node.data_connection import DataConnection
from kvstore.node.moves import Moves
from kvstore.node.read_ahead import Orders, ReadAhead
from kvstore.node.sessions import Session, Sessions
from kvstore.node.ucx_calls import UcxCalls
from kvstore.node.ucx_moves import UcxMoves
from kvstore.rpc.listening import listening
from kvstore.telemetry import Telemetry
from kvstore.transfer.frames import CALLS_KIND, HELLO, HELLO_MAGIC, WELCOME, Welcome
from kvstore.transfer.stream import DataStream, LatestTls

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 0.5  # between two looks at whether the sessions of connections are over


class DataPort:
    """Listens from the start, and serves until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        arena: Arena,
        moves: Moves,
        read_ahead: ReadAhead,
        sessions: Sessions,
        counters: Telemetry,
        tls: LatestTls | None = None,
        ucx: UcxMoves | None = None,
    ) -> None:
        self._arena, self._moves, self._sessions = arena, moves, sessions
        self._read_ahead = read_ahead
        self._counters, self._tls, self._ucx = counters, tls, ucx
        try:
            self._socket = listening(host, port, backlog=64)
        except OSError as error:
            raise ConfigError(f"node.data_port = {port}: cannot listen there: {error}") from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._streams: dict[DataStream, Session] = {}
        self._served = Counter[Session]()
        self._places = Places(DATA_CONNECTIONS_MAX)
        self._greeting = 0
        self._calls: DataCalls | None = None

    async def serve(self, answering: Answering) -> None:
        """Accept until cancelled; `answering` serves those who make calls."""
        if self._calls is None:  # else it is begun again: those who call go on
            self._calls = DataCalls(self._sessions, answering, self._counters)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._accept())
            group.create_task(self._end_those_over())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors: it is better in a while
                log.warning("no data connection can be let in: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            with self._lock:
                full = self._greeting >= DATA_GREETINGS_MAX
                self._greeting += not full
            if full or not self._begun(loop, peer):
                self._counters.add("data_refusals")
                peer.close()

    async def _end_those_over(self) -> None:
        """A call may go on for as long as bytes move, and its session, or its token, not."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with self._lock:
                for stream, session in self._streams.items():
                    if not session.streaming:
                        stream.end()

    def close(self) -> None:
        self._socket.close()
        if self._calls is not None:
            self._calls.close()
        with self._lock:
            for stream in self._streams:
                stream.end()

    def _begun(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bool:
        """Attend a peer, which is counted, in a thread of its own; False where none can be had."""
        peer.setblocking(True)
        try:
            threading.Thread(target=self._attend, args=(loop, peer), daemon=True).start()
        except RuntimeError as error:  # it is better in a while
            log.warning("a data connection was not let in: %s", error)
            with self._lock:
                self._greeting -= 1
            return False
        return True

    def _attend(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> None:
        try:
            with ExitStack() as attended:
                with self._being_greeted():
                    attended.enter_context(peer)
                    peer.settimeout(DATA_GREETING_SECONDS)
                    if peer.recv(1, socket.MSG_PEEK) == CALLS_KIND:
                        self._hand_over(loop, peer, attended)
                        return
                    greeted = attended.enter_context(self._greeted(loop, peer))
                stream, session, orders = greeted
                where = (loop, stream, session, self._arena, self._moves, self._counters)
                with UcxCalls(self._ucx, stream, session, self._arena) as ucx:
                    DataConnection(*where, ucx, orders).serve()
        except (KVStoreError, OSError) as error:
            log.info("a data connection ended: %s", error)

    @contextmanager
    def _being_greeted(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._greeting -= 1

    def _hand_over(
        self, loop: asyncio.AbstractEventLoop, peer: socket.socket, attended: ExitStack
    ) -> None:
        """Calls are answered by the node's loop; return once the caller has been let in there."""
        assert self._calls is not None, "it serves"
        peer.recv(len(CALLS_KIND))
        greeting = self._calls.greet(peer, None if self._tls is None else self._tls())
        try:
            handed = asyncio.run_coroutine_threadsafe(greeting, loop)
        except RuntimeError as error:
            greeting.close()
            raise Unavailable("the node is stopping") from error
        attended.pop_all()  # the loop closes it: one that is late may have begun to listen to it
        handed.result(2 * DATA_GREETING_SECONDS)

    @contextmanager
    def _greeted(
        self, loop: asyncio.AbstractEventLoop, peer: socket.socket
    ) -> Iterator[tuple[DataStream, Session, Orders]]:
        """The connection once it is known whose it is, counted as that session's; or an error."""
        stream: DataStream | None = None
        session: Session | None = None
        try:
            if self._tls is not None:
                peer = self._tls().wrap_socket(peer, server_side=True)
            stream = DataStream(peer, DATA_GREETING_SECONDS)
            answer, session = self._let_in(stream)
            if session is None:
                stream.send(WELCOME.pack(HELLO_MAGIC, answer, 0))
                with suppress(RuntimeError):  # the node's loop has ended
                    loop.call_soon_threadsafe(self._counters.add, "data_refusals")
                raise Unavailable(f"it was not let in: {answer.name}")
            with self._read_ahead.connection(loop, session) as orders:
                stream.send(WELCOME.pack(HELLO_MAGIC, answer, orders.number))
                stream.allow(STALL_SECONDS)
                yield stream, session, orders
        finally:
            with self._lock:
                if stream is not None:
                    self._streams.pop(stream, None)
                if session is not None:
                    self._places.give_back(session.tenant)
                    self._served[session] -= 1
                    if not self._served[session]:
                        del self._served[session]
            if stream is not None:
                stream.close()
            peer.close()

    def _let_in(self, stream: DataStream) -> tuple[Welcome, Session | None]:
        magic, name, token = HELLO.unpack(stream.receive(HELLO.size))
        session = self._sessions.by_data_token(name, token) if magic == HELLO_MAGIC else None
        if session is None:
            return Welcome.UNKNOWN, None
        with self._lock:
            few = self._served[session] < DATA_SESSION_CONNECTIONS_MAX
            if not (few and self._places.try_take(session.tenant)):
                return Welcome.FULL, None
            self._served[session] += 1
            self._streams[stream] = session
        return Welcome.COME_IN, session
