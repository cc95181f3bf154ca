"""One caller's link to one node: calls with deadlines, the session, and the mapped arena.

It outlives the node: after a failure calls fail fast for a while (so that a dead node costs a
request nothing), and the first call after that looks the node up again and begins a new session.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc

from kvstore.client.answer import Answer
from kvstore.client.call_sockets import at_data_port, on_this_host
from kvstore.config import Credentials, host_name
from kvstore.core.spread import Spread
from kvstore.errors import Invalid, KVStoreError, SessionEnded, Unavailable
from kvstore.home import Home
from kvstore.rpc.channel import open_channel
from kvstore.rpc.locator import Locator
from kvstore.rpc.socket_client import Connect, SocketCalls, Stub
from kvstore.rpc.status import raised_by
from kvstore.rpc.threads import threads_for
from kvstore.rpc.tls import Renewing, data_client
from kvstore.transfer.lent import Offer
from kvstore.transfer.near import of_caller
from kvstore.transfer.protocol import Transport
from kvstore.transfer.shm import ShmTransport
from kvstore.transfer.stream import LatestTls
from kvstore.transfer.tcp import TcpTransport
from kvstore.transfer.ucx import UcxTransport
from kvstore.wire.v1 import admin_pb2_grpc, kv_pb2, kv_pb2_grpc

T = TypeVar("T")

_REMOTE = {"tcp": TcpTransport, "ucx": UcxTransport}
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.5, 5.0  # a failed node is left alone, at most


class Link:
    """A live session with a node: its stubs, its token and its transport."""

    def __init__(
        self,
        address: str,
        label: str,
        deadline_seconds: float,
        transport: str = "auto",
        credentials: Credentials | None = None,
        copy_threads: int | None = None,
        device: Any = None,
    ) -> None:
        self.address, self._copy_threads, self._device = address, copy_threads, device
        first: Future[kv_pb2.SessionEvent.Opened] = Future()
        request = kv_pb2.SessionRequest(label=label, numa_node=of_caller(device))
        with threads_for(address):
            self._channel = open_channel(address, credentials)
            over_grpc = kv_pb2_grpc.KVStub(self._channel)
            self._stream = over_grpc.Session(request)
            try:
                threading.Thread(target=self._listen, args=(first,), daemon=True).start()
            except RuntimeError:
                self._hang_up()
                raise
        self.admin = admin_pb2_grpc.AdminStub(self._channel)
        try:
            self.opened = first.result(deadline_seconds)
            self.transport = self._attached(transport, deadline_seconds, credentials)
            self._sockets = SocketCalls(self._connect(credentials), address)
            self.kv = Stub(over_grpc, self._sockets)
        except BaseException as error:
            if hasattr(self, "transport"):
                self.transport.close()
            self._hang_up()
            if isinstance(error, grpc.RpcError):
                raise raised_by(error, address) from error
            if isinstance(error, TimeoutError):
                raise Unavailable(f"node {address} did not begin a session in time") from error
            raise
        self.session: bytes = self.opened.session

    @property
    def alive(self) -> bool:
        return bool(self._stream.is_active())

    @property
    def maps_memory(self) -> bool:
        """Whether blocks are copied by this process alone: the node has none of that to do."""
        return self.transport.name == ShmTransport.name

    def close(self) -> None:
        """End the transport before the session: nobody may write once the node frees our slots."""
        self._sockets.close()
        self.transport.close()
        self._hang_up()

    def _attached(
        self, transport: str, deadline_seconds: float, credentials: Credentials | None
    ) -> Transport:
        """The way bytes go: what was asked for, or works; never another than was asked for."""
        opened = self.opened
        if transport == "auto":
            transport = "shm" if opened.host == host_name() else "tcp"
        if transport == "shm":
            return ShmTransport(
                *(opened.shm_socket, opened.shm_token, opened.arena_bytes, deadline_seconds),
                copy_threads=self._copy_threads,
                offer=Offer(opened.hbm_bytes, opened.hbm_device),
                device=self._device,
                spread=Spread.of([(one.numa_node, one.bytes) for one in opened.spread]),
            )
        if transport not in _REMOTE:
            raise Invalid(f"transport {transport!r}: one of auto, shm, {', '.join(_REMOTE)}")
        who = (opened.data_address, opened.session, opened.data_token)
        return _REMOTE[transport](*who, deadline_seconds, _tls(credentials))

    def _connect(self, credentials: Credentials | None) -> Connect:
        """The way that calls go: where bytes go through memory that is shared, not by a network."""
        opened = self.opened
        if self.maps_memory:
            return on_this_host(opened.shm_socket, opened.data_token)
        who = (opened.data_address, opened.session, opened.data_token)
        return at_data_port(*who, _tls(credentials))

    def _listen(self, first: Future[Any]) -> None:
        try:
            for event in self._stream:
                if event.HasField("opened") and not first.done():
                    first.set_result(event.opened)
        except grpc.RpcError as error:
            if not first.done():
                first.set_exception(error)
        finally:
            transport: Transport | None = getattr(self, "transport", None)
            if transport is not None:
                transport.give_back()

    def _hang_up(self) -> None:
        self._stream.cancel()
        self._channel.close()


def _tls(credentials: Credentials | None) -> LatestTls | None:
    shown = (credentials or Credentials.of_environment()).tls
    return None if shown is None else Renewing(shown, data_client).latest


class Connection:
    """Calls to whichever node a `Locator` finds. Safe to use from several threads.

    Each link shows the certificate and token that `credentials` name, or the environment, as they
    are on disk when it begins; each of its data connections the certificate as it is by then.
    """

    def __init__(
        self,
        locator: Locator,
        label: str,
        deadline_seconds: float = 2.0,
        transport: str = "auto",
        credentials: Credentials | None = None,
        copy_threads: int | None = None,
        device: Any = None,
    ) -> None:
        self._locator, self._label, self._transport = locator, label, transport
        self._credentials, self._copy_threads, self._device = credentials, copy_threads, device
        self.deadline_seconds = deadline_seconds
        self._home, self._lock = Home(), threading.Lock()
        self._looking = threading.Lock()  # of the one thread that looks for the node
        self._link: Link | None = None
        self._parting: list[threading.Thread] = []  # links that were given up and not closed yet
        self._paused_until = 0.0
        self._pause = PAUSE_SECONDS_MIN
        self._failing = False  # since the node was last found
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether there is a session now. Asks nobody."""
        link = self._link
        return link is not None and link.alive

    def link(self) -> Link:
        """The live session, begun anew if the last one ended. Raises `Unavailable` fast.

        One thread looks for the node. The others wait for what it finds, unless it looks whether a
        node that failed is back: one that hangs would have them all stand still.
        """
        self._home.check()
        link = self._link
        if link is not None and link.alive:
            return link
        if not self._looking.acquire(blocking=not (self._failing or self._closed)):
            self._check_open()
            raise Unavailable("the node failed, and another thread looks whether it is back")
        try:
            with self._lock:
                self._check_open()
                if self._link is not None and self._link.alive:
                    return self._link
                if time.monotonic() < self._paused_until:
                    raise Unavailable("the node failed a moment ago and is left alone for a while")
                self._drop()
            return self._begun()
        finally:
            self._looking.release()

    def _begun(self) -> Link:
        """A session, for all threads. One that is closed meanwhile waits for nothing of it."""
        try:
            address = self._locator.find()
            told = (self.deadline_seconds, self._transport, self._credentials)
            link = Link(address, self._label, *told, self._copy_threads, self._device)
        except KVStoreError:
            with self._lock:
                self._rest()
            raise
        with self._lock:
            if not self._closed:
                self._link, self._failing, self._pause = link, False, PAUSE_SECONDS_MIN
                return link
        link.close()
        raise SessionEnded("the client is closed")

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the client is closed")

    def call(self, method: Callable[[Link], Callable[..., Any]], request: Any) -> Any:
        """Make one unary call on the live link; errors come out typed."""
        link = self.link()
        return self._typed(
            link, request, lambda: method(link)(request, timeout=self.deadline_seconds)
        )

    def begin(self, method: str, request: Any) -> Answer[Any]:
        """Send the call of this name; its answer is had, or dropped, whatever happens meanwhile."""
        link, seconds = self.link(), self.deadline_seconds
        wait = self._typed(link, request, lambda: link.kv.begin(method, request, seconds))

        def waited() -> Any:
            self._home.check()  # a copy would read what the process waits for
            return self._typed(link, request, wait)

        return Answer(waited)

    def _typed(self, link: Link, request: Any, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KVStoreError as error:
            self._heed(error, link, getattr(request, "session", link.session))
            raise
        except ValueError as error:  # gRPC's word for a channel that was closed before the call
            raise SessionEnded("the session was ended by another thread") from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:  # by us: nodes end calls otherwise
                raise SessionEnded("the session was ended while a call was under way") from error
            raised = raised_by(error, link.address)
            self._heed(raised, link, getattr(request, "session", link.session))
            raise raised from error

    def give_up(self, link: Link) -> None:
        """End a session by which a node may hold what nobody here can let go; the next begins one
        anew."""
        with self._lock:
            if self._link is link:
                self._drop()

    def close(self) -> None:
        """Nothing moves any more when this returns."""
        if not self._home.here:
            return  # what a copy of the process ends there ends for both
        with self._lock:
            self._closed = True
            self._drop()
            parting = self._parting
        for one in parting:
            one.join()

    def _heed(self, raised: KVStoreError, link: Link, session: bytes) -> None:
        """Give up a link that a failure shows to be dead. A node that says itself what it cannot
        do now is well."""
        over = isinstance(raised, SessionEnded) and session == link.session
        gone = isinstance(raised, Unavailable) and not raised.answered
        with self._lock:
            if self._link is link and (over or gone):
                self._drop()
                if not over:
                    self._rest()

    def _drop(self) -> None:
        """Closing waits for what still moves there, which may take long: but for whoever closes
        this, nobody waits for that."""
        link, self._link = self._link, None
        if link is None:
            return
        thread = threading.Thread(target=link.close, name="moonpool-parting", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # none can be had
            link.close()
            return
        self._parting = [*(one for one in self._parting if one.is_alive()), thread]

    def _rest(self) -> None:
        self._failing = True
        # By chance: all clients of a node lose it in one instant.
        self._paused_until = time.monotonic() + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
