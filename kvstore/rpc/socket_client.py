"""The caller's half of `kvstore.rpc.socket_frames`: a few sockets that its threads take in turn.

A call that finds none free, or that is not among those that sockets carry, goes over gRPC; so does
everything where the sockets cannot be had. One that was sent is never sent again: what it did is
not known, and the caller learns that its node failed.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kvstore import traces
from kvstore.errors import SessionEnded, Unavailable
from kvstore.home import Home
from kvstore.limits import RPC_REPLY_BYTES_MAX, SOCKET_CALLS_MAX
from kvstore.rpc.socket_frames import ANSWER, CALL, METHODS, OK
from kvstore.rpc.status import error_of
from kvstore.wire.v1 import kv_pb2 as pb

_PAUSE_SECONDS = 5.0  # after a socket that could not be had
_OWED_SECONDS = 0.1  # for the answer to what was posted before, by who waits for nobody

# Makes a socket that is let in by its node, in so many seconds, and shows it from when it begins to
# wait for the node, so that others can end that. Raises `OSError`.
Show = Callable[[socket.socket], None]
Connect = Callable[[float, Show], socket.socket]


class SocketCalls:
    """Calls to a node on sockets that `connect` makes. Safe to use from several threads."""

    def __init__(self, connect: Connect, node: str) -> None:
        self._connect, self._node = connect, node
        self._home, self._lock = Home(), threading.Lock()
        self._free: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._coming: dict[object, socket.socket | None] = {}  # those that are being let in
        self._owing: set[socket.socket] = set()  # an answer that nobody waits for
        self._closed = False
        self._not_before = 0.0

    def take(self, seconds: float) -> socket.socket | None:
        """A socket to call on, or none: all are being called on, or the node has no more."""
        self._home.check()
        with self._lock:
            made = self._free.pop() if self._free else None
        if made is not None:
            return self._settled(made, seconds)
        with self._lock:
            full = len(self._open) + len(self._coming) >= SOCKET_CALLS_MAX
            if self._closed or full or time.monotonic() < self._not_before:
                return None
            place = object()
            self._coming[place] = None
        return self._let_in(place, seconds)

    def take_free(self) -> socket.socket | None:
        """One that nobody calls on, or none, at once: unless the node is late with what was posted
        before, and then such a socket is of no use more."""
        self._home.check()
        with self._lock:
            made = self._free.pop() if self._free else None
        return made if made is None else self._settled(made, _OWED_SECONDS)

    def call(self, made: socket.socket, method: int, request: Any, seconds: float) -> Any:
        """The reply, or its typed error."""
        until = time.monotonic() + seconds
        self._send(made, method, request, seconds)
        return self._reply(made, method, until)

    def begin(
        self, made: socket.socket, method: int, request: Any, seconds: float
    ) -> Callable[[], Any]:
        """Send a call. What is returned waits for its reply, as long from when it is called; until
        it was called, which is once, the socket is not free."""
        self._send(made, method, request, seconds)
        return lambda: self._reply(made, method, time.monotonic() + seconds)

    def _reply(self, made: socket.socket, method: int, until: float) -> Any:
        code, retry, body = self._answer(made, until)
        if code == OK:
            with self._heard(made):
                reply = METHODS[method][2].FromString(body)
            self._give_back(made)
            return reply
        self._give_back(made)
        kind, _, text = body.decode(errors="replace").partition("\n")
        raise error_of(kind, code, text, retry, self._node)

    def post(self, made: socket.socket, method: int, request: Any, seconds: float) -> None:
        """A call that nobody waits for. Its answer is read before the socket's next call."""
        self._send(made, method, request, seconds)
        self._owing.add(made)
        self._give_back(made)

    def close(self) -> None:
        """Calls under way fail."""
        with self._lock:
            self._closed, self._free = True, []
            some, self._open = self._open, set()
            coming = [one for one in self._coming.values() if one is not None]
        for one in coming:
            _end(one)  # and whoever connects it closes it
        for one in some:
            _end(one)
            one.close()

    def _let_in(self, place: object, seconds: float) -> socket.socket | None:
        """A new one, that has a place among those that are coming."""

        def show(made: socket.socket) -> None:
            with self._lock:
                self._coming[place] = made
                if self._closed:
                    raise OSError("closed meanwhile")

        made: socket.socket | None = None
        try:
            with suppress(OSError):
                made = self._connect(seconds, show)
        finally:
            with self._lock:
                del self._coming[place]
                closed = self._closed
                if made is None:
                    self._not_before = time.monotonic() + _PAUSE_SECONDS
                elif not closed:
                    self._open.add(made)
        if made is not None and closed:
            made.close()
            return None
        return made

    def _settled(self, made: socket.socket, seconds: float) -> socket.socket | None:
        """The socket once what it owes was read: what was posted has been done by then."""
        if made in self._owing:
            self._owing.discard(made)
            try:
                self._answer(made, time.monotonic() + seconds)
            except (SessionEnded, Unavailable):
                return None
        return made

    def _send(self, made: socket.socket, method: int, request: Any, seconds: float) -> None:
        message, trace = request.SerializeToString(), traces.traceparent().encode()
        with self._heard(made):
            made.settimeout(seconds)
            size = len(message) + len(trace)
            head = CALL.pack(size, method, len(trace), round(1e3 * seconds))
            made.sendall(head + message + trace)

    def _answer(self, made: socket.socket, until: float) -> tuple[int, int, bytes]:
        """Status code, milliseconds to retry after, and what else it says."""
        with self._heard(made):  # it may be closed meanwhile
            size, code, _, retry = ANSWER.unpack(received(made, ANSWER.size, until))
            if size > RPC_REPLY_BYTES_MAX:
                raise OSError(f"an answer of {size} bytes")
            return code, retry, received(made, size, until)

    @contextmanager
    def _heard(self, made: socket.socket) -> Iterator[None]:
        """A socket that fails is of no use any more."""
        try:
            yield
        except TimeoutError:
            self._drop(made)
            raise Unavailable(f"node {self._node} did not answer within the deadline") from None
        except OSError as error:
            self._drop(made)
            if self._closed:  # no fault of the node's
                raise SessionEnded("the session was ended while a call was under way") from error
            raise Unavailable(f"node {self._node} cannot be reached: {error}") from error
        except DecodeError as error:
            self._drop(made)
            raise Unavailable(f"what node {self._node} answered cannot be read: {error}") from error
        except BaseException:  # interrupted: what it was asked may yet be answered there
            self._drop(made)
            raise

    def _give_back(self, made: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(made)

    def _drop(self, made: socket.socket) -> None:
        with self._lock:
            self._open.discard(made)
            self._owing.discard(made)
        made.close()


class Stub:
    """A service's methods as attributes, each called with a request and `timeout` in seconds: by
    sockets where they can, else by the stub of gRPC's."""

    def __init__(self, other: Any, calls: SocketCalls | None = None) -> None:
        self._calls, self._other = calls, other
        for number, (name, _, _) in enumerate(METHODS if calls is not None else ()):
            setattr(self, name, self._either(number, getattr(other, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def begin(self, name: str, request: Any, timeout: float) -> Callable[[], Any]:
        """Send a call of the method of this name; what is returned waits for its reply. It is to be
        called, whatever happens meanwhile."""
        until = time.monotonic() + timeout
        made = self._calls.take(timeout) if self._calls is not None else None
        left = seconds_left(until)
        if self._calls is None or made is None:
            asked: Callable[[], Any] = getattr(self._other, name).future(request, left).result
            return asked
        return self._calls.begin(made, _NUMBERS[name], request, left)

    def post_close(self, request: pb.CloseRequest, timeout: float) -> None:
        """Have pins end. Nobody waits for it: one that fails ends with its time or its session."""
        with suppress(ValueError, SessionEnded, Unavailable):  # of what is closed, or gone
            made = self._calls.take_free() if self._calls is not None else None
            if self._calls is None or made is None:
                self._other.Close.future(request, timeout=timeout).add_done_callback(_done)
            else:
                self._calls.post(made, _NUMBERS["Close"], request, timeout)

    def _either(self, number: int, other: Callable[..., Any]) -> Callable[..., Any]:
        calls = self._calls
        assert calls is not None

        def call(request: Any, timeout: float) -> Any:
            until = time.monotonic() + timeout
            made = calls.take(timeout)
            if made is None:
                return other(request, timeout=seconds_left(until))
            return calls.call(made, number, request, seconds_left(until))

        return call


_NUMBERS = {name: number for number, (name, _, _) in enumerate(METHODS)}


def seconds_left(until: float) -> float:
    """Those of a call of which some have passed: a node that answers nothing would be waited for
    once more at each step. Never none at all, which has meanings of its own."""
    return max(until - time.monotonic(), 1e-3)


def _end(one: socket.socket) -> None:
    """Wake whoever waits on it. Not by the way of TLS, which would go on in clear text."""
    with suppress(OSError):
        socket.socket.shutdown(one, socket.SHUT_RDWR)


def _done(call: grpc.Future) -> None:
    call.exception()


def received(made: socket.socket, size: int, until: float) -> bytes:
    """So many bytes; `OSError` where they end before. Each that comes has the socket wait anew, so
    it is told each time how long it is until that moment."""
    made.settimeout(seconds_left(until))
    got = made.recv(size)
    if len(got) == size:
        return got
    room = bytearray(size)
    room[: len(got)] = got
    at = len(got)
    while at < size:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError
        made.settimeout(left)
        came = made.recv_into(memoryview(room)[at:])
        if not came:
            raise OSError("it hung up")
        at += came
    return bytes(room)
