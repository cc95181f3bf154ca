"""One data connection: exact numbers of bytes, to and from memory where it lies, by a deadline.

The kernel keeps the time (SO_RCVTIMEO, SO_SNDTIMEO), so that one call moves as much as there is
without a turn through the interpreter. A peer that ends, that stalls for `stall_seconds`, or that
is slower for longer than `DATA_RATE_MIN` allows, is an `Unavailable`; the connection is of no use
after it. One thread at a time moves on a stream; any thread may `end` it.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from kvstore.errors import Unavailable
from kvstore.limits import DATA_RATE_MIN, STALL_SECONDS, KiB

_TIMEVAL = struct.Struct("ll")
_DRAINED_BYTES = 64 * KiB  # at a time, of what nobody wants
_PIECES_MAX = 512  # of one call to the kernel, which takes 1,024
# A peer whose host is gone says nothing: 20 s of silence, then three questions in 15 s.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)

Buffer = memoryview
LatestTls = Callable[[], ssl.SSLContext]  # asked for each connection: its files may be renewed


def prepare(connected: socket.socket) -> None:
    """Set what every connection to another host has: nothing waits to be sent, and one whose peer
    is gone does not stay."""
    for option in _KEEPALIVE:
        connected.setsockopt(*option)


def host_and_port(address: str) -> tuple[str, int]:
    """Where a node says that it moves bytes. Raises `Unavailable` where it names no such place."""
    host, _, port = address.rpartition(":")
    named = host and host.isprintable() and port.isascii() and port.isdigit() and len(port) <= 5
    if not named or not 0 < int(port) < 65_536:
        raise Unavailable(f"{address[:64]!r} is no HOST:PORT at which a node moves bytes")
    return host.strip("[]"), int(port)


class DataStream:
    """Sends and receives on one connected socket."""

    def __init__(self, connected: socket.socket, stall_seconds: float = STALL_SECONDS) -> None:
        self._socket = connected
        self._tls = isinstance(connected, ssl.SSLSocket)
        if connected.family != socket.AF_UNIX:
            prepare(connected)
        self._ending = threading.Lock()
        self._ended = self._kept = False
        self._coming, self._going = select.poll(), select.poll()
        self._coming.register(connected, select.POLLIN)
        self._going.register(connected, select.POLLOUT)
        self.allow(stall_seconds)

    @classmethod
    def connect(
        cls, address: tuple[str, int], seconds: float, tls: ssl.SSLContext | None = None
    ) -> DataStream:
        """A connection to HOST, PORT; `seconds` is its deadline, and that of every standstill
        later. Raises `Unavailable`."""
        made: socket.socket | None = None
        try:
            made = reached(address, seconds)
            if tls is not None:
                made = tls.wrap_socket(made, server_hostname=address[0])
            return cls(made, seconds)
        except (OSError, UnicodeError) as error:  # the latter of a host that no name can be
            if made is not None:
                made.close()
            raise Unavailable(f"{address[0]}:{address[1]} cannot be reached: {error}") from error

    def allow(self, stall_seconds: float) -> None:
        """How long the peer may stand still from now on."""
        self.stall_seconds = stall_seconds
        if self._tls:
            self._socket.settimeout(stall_seconds)
            return
        self._socket.settimeout(None)
        whole = _TIMEVAL.pack(int(stall_seconds), int(stall_seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, whole)

    def send(self, *buffers: Buffer | bytes) -> None:
        """All of these bytes, in order."""
        self.send_all(buffers)

    def send_all(self, buffers: Iterable[Buffer | bytes]) -> int:
        """All of these bytes, in order; how many they were. They are taken a few at a time."""
        pace, left = _Pace(self.stall_seconds), iter(buffers)
        try:
            while some := list(islice(left, _PIECES_MAX)):
                if self._tls:
                    self._send_sealed(some, pace)
                else:
                    self._send_some(some, pace)
        except OSError as error:
            raise self.failed(error) from error
        return pace.moved

    def receive(self, count: int) -> bytes:
        """So many bytes, of which the caller says how many it wants to hold."""
        taken = bytearray(count)
        self.receive_into([memoryview(taken)])
        return bytes(taken)

    def receive_into(self, buffers: Iterable[Buffer]) -> int:
        """Fill these buffers, in order; how many bytes they were."""
        pace, left = _Pace(self.stall_seconds), iter(buffers)
        try:
            while some := list(islice(left, _PIECES_MAX)):
                if self._tls:
                    self._receive_sealed(some, pace)
                else:
                    self._receive_some(some, pace)
        except OSError as error:
            raise self.failed(error) from error
        return pace.moved

    def receive_rows(self, size: int, count: int, most: int) -> Iterator[Buffer]:
        """So many rows of so many bytes, as they come: each time whole ones, `most` at most, in
        room that those behind them will have."""
        room, filled = memoryview(bytearray(size * min(count, most))), 0
        while count:
            filled += self._receive_row(room[: size * min(count, most)], filled, size)
            whole = filled - filled % size
            yield room[:whole]
            room[: filled - whole] = room[whole:filled]
            filled, count = filled - whole, count - whole // size

    @property
    def descriptor(self) -> int | None:
        """The socket that bytes come from as they were sent; None where they are sealed."""
        return None if self._tls else self._socket.fileno()

    def quiet(self, seconds: float, *others: int) -> bool:
        """Whether the peer says nothing for so long. Its end is something; so is what can be read
        from one of these other descriptors."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        waiting = select.poll()  # select itself knows no descriptor past 1,023
        for one in (self._socket.fileno(), *others):
            waiting.register(one, select.POLLIN)
        return not waiting.poll(1e3 * seconds)

    def end(self) -> None:
        """Hang up, whoever may stand in a call on it: that call fails, and its caller closes."""
        with self._ending, suppress(OSError):  # it has ended by itself
            self._ended = True
            # Not by the TLS socket's own way, which would go on in clear text.
            way = socket.SHUT_RD if self._kept else socket.SHUT_RDWR
            socket.socket.shutdown(self._socket, way)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the peer's memory is moved by other means: it lets go of that when it is hung up
        on, so it hears of an `end` at the end of the block. Raises `Unavailable` after one."""
        with self._ending:
            if self._ended:
                raise Unavailable("a data connection was ended")
            self._kept = True
        try:
            yield
        finally:
            with self._ending:
                self._kept, ended = False, self._ended
            if ended:
                self.end()

    def end_sending(self) -> None:
        """Ask for nothing more: what the peer is at it may finish, and then it hangs up."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def wait_for_end(self) -> None:
        """Until the peer has hung up, or its host is gone, however long that takes."""
        self.end_sending()
        with suppress(OSError):
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, 0))
            # As it comes: nobody unseals it, and what cannot be unsealed is no end.
            while socket.socket.recv(self._socket, _DRAINED_BYTES):
                pass

    def close(self) -> None:
        """Hang up. Only for whoever uses it: another's socket could have this one's number next."""
        self.end()
        self._socket.close()

    def _send_some(self, buffers: list[Buffer | bytes], pace: _Pace) -> None:
        left = sum(map(len, buffers))
        while left:
            self._wait(self._going)
            sent = self._socket.sendmsg(buffers)
            left -= sent
            pace.keep(sent)
            if left:
                buffers = _after(buffers, sent)

    def _receive_some(self, buffers: list[Buffer], pace: _Pace) -> None:
        left = sum(map(len, buffers))
        while left:
            self._wait(self._coming)
            got, _, _, _ = self._socket.recvmsg_into(buffers, 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionResetError("it hung up")
            left -= got
            pace.keep(got)
            if left:
                buffers = _after(buffers, got)

    def _wait(self, ready: select.poll) -> None:
        """Until a byte can move. The kernel begins its time anew with each signal: where they come
        often, it would wait for ever. (TLS keeps time by itself, and may have bytes already.)"""
        if not self._tls and not ready.poll(1e3 * self.stall_seconds):
            raise TimeoutError

    def _receive_row(self, room: Buffer, filled: int, size: int) -> int:
        """Go on to fill this until the first of its rows is whole; how much more came."""
        pace = _Pace(self.stall_seconds)
        try:
            while filled + pace.moved < size:
                self._wait(self._coming)
                got = self._socket.recv_into(room[filled + pace.moved :])
                if not got:
                    raise ConnectionResetError("it hung up")
                pace.keep(got)
        except OSError as error:
            raise self.failed(error) from error
        return pace.moved

    def _send_sealed(self, buffers: list[Buffer | bytes], pace: _Pace) -> None:
        for one in buffers:
            rest = memoryview(one)
            while len(rest):
                sent = self._socket.send(rest)
                rest = rest[sent:]
                pace.keep(sent)

    def _receive_sealed(self, buffers: list[Buffer], pace: _Pace) -> None:
        for one in buffers:
            rest = one
            while len(rest):
                got = self._socket.recv_into(rest)
                if not got:
                    raise ConnectionResetError("it hung up")
                rest = rest[got:]
                pace.keep(got)

    def failed(self, error: OSError) -> Unavailable:
        """What a failure of its socket is to whoever waits for bytes."""
        still = isinstance(error, BlockingIOError | TimeoutError)
        why = "it stood still for too long" if still else str(error)
        return Unavailable(f"a data connection broke: {why}")


def reached(address: tuple[str, int], seconds: float) -> socket.socket:
    """As `create_connection`, which waits for a name for as long as the resolver likes, and so long
    for each of its addresses."""
    made: Future[socket.socket] = Future()

    def connect() -> None:
        try:
            made.set_result(socket.create_connection(address, seconds))
        except Exception as error:
            made.set_exception(error)

    try:
        if _is_number(address[0]):
            return socket.create_connection(address, seconds)
        threading.Thread(target=connect, name="moonpool-connect", daemon=True).start()
    except RuntimeError:  # no thread can be had
        return socket.create_connection(address, seconds)
    try:
        return made.result(seconds)
    except TimeoutError:
        made.add_done_callback(_unwanted)
        raise TimeoutError("its name was not resolved, or nobody answered, in time") from None


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unwanted(late: Future[socket.socket]) -> None:
    if late.exception() is None:
        late.result().close()


class _Pace:
    """One run of bytes, however long: none may take so long that it holds others' memory up."""

    def __init__(self, stall_seconds: float) -> None:
        self.moved = 0
        self._until = time.monotonic() + stall_seconds

    def keep(self, more: int) -> None:
        """So many bytes have moved; raises `TimeoutError` if they should have been more by now."""
        self.moved += more
        if time.monotonic() > self._until + self.moved / DATA_RATE_MIN:
            raise TimeoutError


def _after(buffers: Sequence[Any], count: int) -> list[Any]:
    """What is left of buffers when their first `count` bytes are done."""
    for i, one in enumerate(buffers):
        if count < len(one):
            return [memoryview(one)[count:], *buffers[i + 1 :]]
        count -= len(one)
    return []
