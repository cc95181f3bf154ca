"""The port at which the node moves blocks' bytes to and from other hosts, over plain sockets.

Each connection belongs to one session and has a thread of its own, which moves bytes between slots
and the socket where they lie. What it may move it asks the node's loop (`kvstore.node.moves`).
Connections are bounded in number, a peer that stalls is hung up on, and a session's end ends its
connections.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, TypeVar

import numpy as np

from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.layout import IDENTITY_OFFSET, Fragment
from kvstore.limits import (
    DATA_CALL_BLOCKS_MAX,
    DATA_CONNECTIONS_MAX,
    DATA_GREETING_SECONDS,
    DATA_GREETINGS_MAX,
    DATA_SESSION_CONNECTIONS_MAX,
    HANDLE_BYTES_MAX,
    PROBE_BYTES_MAX,
    STALL_SECONDS,
    KiB,
)
from kvstore.memory.arena import Arena
from kvstore.node.coming import Coming
from kvstore.node.data_calls import Answering, DataCalls
from kvstore.node.moves import Held, Moves
from kvstore.node.sessions import Session, Sessions
from kvstore.node.ucx_calls import UcxCalls, bytes_of
from kvstore.node.ucx_moves import UcxMoves
from kvstore.telemetry import Telemetry
from kvstore.transfer.calls import Statuses
from kvstore.transfer.frames import (
    CALL,
    CALLS_KIND,
    HELLO,
    HELLO_MAGIC,
    LOOKED,
    WELCOME,
    Op,
    Status,
    Welcome,
)
from kvstore.transfer.stream import DataStream

log = logging.getLogger(__name__)
T = TypeVar("T")

_IDLE_SECONDS = 1.0  # how often a quiet connection looks whether its session is over
_ASK_SECONDS = 10.0  # that the node's loop may take to answer
_PAUSE_SECONDS = 0.2
_PROBE_PIECE = memoryview(bytes(256 * KiB))  # sent again and again: probes hold no memory


class DataPort:
    """Listens from the start, and serves until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        arena: Arena,
        moves: Moves,
        sessions: Sessions,
        counters: Telemetry,
        tls: Callable[[], ssl.SSLContext] | None = None,  # asked for each connection
        ucx: UcxMoves | None = None,
    ) -> None:
        self._arena, self._moves, self._sessions = arena, moves, sessions
        self._counters, self._tls, self._ucx = counters, tls, ucx
        try:
            self._socket = socket.create_server((host.strip("[]"), port), backlog=64)
        except OSError as error:
            raise ConfigError(f"node.data_port = {port}: cannot listen there: {error}") from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._streams: set[DataStream] = set()
        self._served = Counter[Session]()
        self._greeting = 0
        self._calls: DataCalls | None = None

    async def serve(self, answering: Answering) -> None:
        """Accept until cancelled; `answering` serves those who make calls."""
        self._calls = DataCalls(self._sessions, answering, self._counters)
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
            if full:
                self._counters.add("data_refusals")
                peer.close()
                continue
            peer.setblocking(True)
            threading.Thread(target=self._attend, args=(loop, peer), daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        if self._calls is not None:
            self._calls.close()
        with self._lock:
            for stream in self._streams:
                stream.end()

    def _attend(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> None:
        try:
            with ExitStack() as attended:
                with self._being_greeted():
                    attended.enter_context(peer)
                    peer.settimeout(DATA_GREETING_SECONDS)
                    if peer.recv(1, socket.MSG_PEEK) == CALLS_KIND:
                        self._hand_over(loop, peer)
                        attended.pop_all()
                        return
                    stream, session = attended.enter_context(self._greeted(loop, peer))
                where = (loop, stream, session, self._arena, self._moves, self._counters)
                with UcxCalls(self._ucx, stream, session, self._arena) as ucx:
                    _Connection(*where, ucx).serve()
        except (KVStoreError, OSError) as error:
            log.info("a data connection ended: %s", error)

    @contextmanager
    def _being_greeted(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._greeting -= 1

    def _hand_over(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> None:
        """Calls are answered by the node's loop; return once the caller has been let in there."""
        assert self._calls is not None, "it serves"
        peer.recv(len(CALLS_KIND))
        greeting = self._calls.greet(peer, None if self._tls is None else self._tls())
        try:
            handed = asyncio.run_coroutine_threadsafe(greeting, loop)
        except RuntimeError as error:
            greeting.close()
            raise Unavailable("the node is stopping") from error
        handed.result(2 * DATA_GREETING_SECONDS)

    @contextmanager
    def _greeted(
        self, loop: asyncio.AbstractEventLoop, peer: socket.socket
    ) -> Iterator[tuple[DataStream, Session]]:
        """The connection once it is known whose it is, counted as that session's; or an error."""
        stream: DataStream | None = None
        session: Session | None = None
        try:
            if self._tls is not None:
                peer = self._tls().wrap_socket(peer, server_side=True)
            stream = DataStream(peer, DATA_GREETING_SECONDS)
            answer, session = self._let_in(stream)
            stream.send(WELCOME.pack(HELLO_MAGIC, answer))
            stream.allow(STALL_SECONDS)
            if session is None:
                with suppress(RuntimeError):  # the node's loop has ended
                    loop.call_soon_threadsafe(self._counters.add, "data_refusals")
                raise Unavailable(f"it was not let in: {answer.name}")
            yield stream, session
        finally:
            with self._lock:
                if stream is not None:
                    self._streams.discard(stream)
                if session is not None:
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
            full = self._served.total() >= DATA_CONNECTIONS_MAX
            if full or self._served[session] >= DATA_SESSION_CONNECTIONS_MAX:
                return Welcome.FULL, None
            self._served[session] += 1
            self._streams.add(stream)
        return Welcome.COME_IN, session


class _Connection:
    """One session's connection, in its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: DataStream,
        session: Session,
        arena: Arena,
        moves: Moves,
        counters: Telemetry,
        ucx: UcxCalls,
    ) -> None:
        self._loop, self._stream, self._session = loop, stream, session
        self._arena, self._view = arena, arena.view
        self._moves, self._counters, self._ucx = moves, counters, ucx

    def serve(self) -> None:
        """Answer calls until the caller hangs up or its session ends."""
        while True:
            while self._stream.quiet(_IDLE_SECONDS):
                if not self._session.streaming:
                    return
            call = CALL.unpack(self._stream.receive(CALL.size))
            op, handle_bytes, count, *part, _, size = call
            if not self._session.streaming:
                return  # one that is never quiet ends too
            if op == Op.PROBE and size <= PROBE_BYTES_MAX:
                self._probe(size)
                continue
            if op == Op.ATTACH:
                self._ucx.attach(size)
                continue
            if not (0 < handle_bytes <= HANDLE_BYTES_MAX and 0 < count <= DATA_CALL_BLOCKS_MAX):
                return
            said = self._stream.receive(handle_bytes * count)
            handles = [said[i : i + handle_bytes] for i in range(0, len(said), handle_bytes)]
            fragment = Fragment(*part)
            if op == Op.READ:
                self._read(handles, fragment)
            elif op == Op.WRITE:
                self._write(handles, fragment)
            elif op == Op.PULL:
                self._pull(handles, fragment, size)
            elif op == Op.PUSH:
                self._push(handles, fragment, size)
            elif op == Op.LOOK:
                looked = self._ask(self._moves.look, self._session, handles, fragment)
                self._stream.send(b"".join(LOOKED.pack(*one) for one in looked))
            else:
                return

    def _read(self, handles: Sequence[bytes], fragment: Fragment) -> None:
        held = self._ask(self._moves.reading, self._session, handles, fragment)
        sent = 0
        try:
            # A generator: the pieces of many blocks of many strips are never all there at once.
            pieces = itertools.chain.from_iterable(self._pieces(one) for one in held)
            sent = self._stream.send_all(itertools.chain([_statuses(held)], pieces))
        finally:
            self._tell(self._over, "data_sent_bytes", sent, held)

    def _pieces(self, one: Held | Status) -> Iterator[memoryview]:
        """A block's identity and table, and the fragment's strips, where they lie."""
        if isinstance(one, Held):
            at = one.slot.offset
            yield self._view[at + IDENTITY_OFFSET : at + IDENTITY_OFFSET + one.layout.root_bytes]
            at += one.layout.head_bytes
            for start, size in one.layout.runs(one.slot.tokens, one.fragment):
                yield self._view[at + start : at + start + size]

    def _write(self, handles: Sequence[bytes], fragment: Fragment) -> None:
        held = self._ask(self._moves.writing, self._session, handles, fragment)
        came = 0
        try:
            statuses = _statuses(held)
            self._stream.send(statuses)
            settled: list[Statuses] = []
            for some in Coming.few(self._arena, _moved(held)):
                self._stream.receive_into(some.buffers())
                came += some.payload_bytes
                settled.append(some.settle())
            statuses = _with(statuses, settled)
        finally:
            # Before the caller is answered: what it does next finds the slots let go.
            self._tell(self._over, "data_received_bytes", came, held, self._session)
        self._stream.send(statuses)

    def _pull(self, handles: Sequence[bytes], fragment: Fragment, region: int) -> None:
        places = self._ucx.places(len(handles), region)
        held: list[Held | Status] = []
        moved: list[Held | Status] = []
        sent = 0

        def steps() -> Iterator[list[Held | Status]]:
            for some in self._ucx.steps(len(handles)):
                asked = self._ask(self._moves.reading, self._session, handles[some], fragment)
                held.extend(asked)
                fitting = self._ucx.fitting(asked, places[some], region)
                moved.extend(fitting)
                yield fitting

        try:
            with closing(self._ucx.write(steps(), places, region)) as landing:
                landed = next(landing, [])
                self._stream.send(_statuses(moved))
                while landed:
                    runs = [one.slot.offset + IDENTITY_OFFSET for one in landed]
                    size = landed[0].layout.root_bytes
                    self._stream.send_all([self._view[at : at + size] for at in runs])
                    landed = next(landing, [])
            sent = bytes_of(moved)
        finally:
            self._tell(self._over, "ucx_sent_bytes", sent, held)

    def _push(self, handles: Sequence[bytes], fragment: Fragment, region: int) -> None:
        places = self._ucx.places(len(handles), region)
        held = self._ask(self._moves.writing, self._session, handles, fragment)
        came = 0
        try:
            moved = self._ucx.fitting(held, places, region)
            self._stream.send(_statuses(moved))
            coming = list(Coming.few(self._arena, _moved(moved)))
            self._stream.receive_into(entries for some in coming for entries in some.entries)
            self._ucx.read(moved, places, region)
            came = bytes_of(moved)
            statuses = _with(_statuses(moved), [some.settle() for some in coming])
        finally:
            self._tell(self._over, "ucx_received_bytes", came, held, self._session)
        self._stream.send(statuses)

    def _over(
        self, counter: str, size: int, held: Sequence[Held | Status], into: Session | None = None
    ) -> None:
        """On the node's loop, in one turn of it: so much has moved, and nothing more will."""
        self._counters.add(counter, size)
        self._moves.let_go(held, into)

    def _probe(self, size: int) -> None:
        left = size
        while left:
            piece = _PROBE_PIECE[:left]
            self._stream.send(piece)
            left -= len(piece)
        room, left = memoryview(bytearray(min(size, len(_PROBE_PIECE)))), size
        while left:
            left -= self._stream.receive_into([room[:left]])
        self._stream.send(b"\0")

    def _ask(self, what: Callable[..., T], *arguments: Any) -> T:
        """An answer of the node's loop, which alone knows slots. In time, or it is never asked."""
        answer: Future[T] = Future()

        def asked() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(what(*arguments))
                except BaseException as error:
                    answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(asked)
        except RuntimeError as error:
            raise Unavailable("the node is stopping") from error
        try:
            return answer.result(_ASK_SECONDS)
        except TimeoutError:
            if answer.cancel():
                raise
            return answer.result()  # it is being answered at this moment

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it all that is held
            self._loop.call_soon_threadsafe(what, *arguments)


def _moved(held: Sequence[Held | Status]) -> list[Held]:
    return [one for one in held if isinstance(one, Held)]


def _statuses(held: Sequence[Held | Status]) -> bytes:
    return bytes(Status.MOVED if isinstance(one, Held) else one for one in held)


def _with(statuses: bytes, settled: Sequence[Statuses]) -> bytes:
    """The same, with what has become of those that were to be moved."""
    all_ = np.frombuffer(statuses, dtype=np.uint8).copy()
    if settled:
        all_[all_ == Status.MOVED] = np.concatenate(settled)
    return all_.tobytes()
