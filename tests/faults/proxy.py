"""A TCP proxy that spoils what passes: late, slow, cut off, stopped, or with bits that flipped.

It stands between a caller and a real server, in threads of the test's own process, with a setting
for each direction that may change while connections run. What a setting does is the same in each
connection, whatever the others do: bytes are counted there since the setting was made, or since the
connection began if that was later, and dice are the connection's own, made of the proxy's seed.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

_PIECE_BYTES = 64 << 10
_HELD_BYTES_MAX = 4 << 20  # read and not passed on yet, of one direction of one connection
_TURN_SECONDS = 0.01  # so soon a new setting, or the end, is heeded
_CONNECT_SECONDS = 10.0
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What becomes of one direction's bytes. By default nothing."""

    delay_seconds: float = 0.0  # each byte arrives so much later
    bytes_per_second: float = 0.0  # at most; 0: as fast as it goes
    stalled: bool = False  # nothing passes and nothing is taken, and the connection stays
    close_after_bytes: int | None = None  # so many pass, then both sides see the end
    flip_at_byte: int | None = None  # one bit of this byte; 0 is the first
    flip_rate: float = 0.0  # of all bytes, one bit each, by chance


class Direction:
    """One of the two, of all connections. Set `faults` at any time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults = Faults()
        self._lock = threading.Lock()
        self.passed_bytes = 0
        self.flipped = 0  # bits, so far: a test that wants damage asserts that there was some
        self.heard: bytearray | None = None  # all that passes, from when a test puts one here

    def passed(self, piece: bytearray, flipped: int) -> None:
        with self._lock:
            self.passed_bytes += len(piece)
            self.flipped += flipped
            if self.heard is not None:
                self.heard += piece


class Proxy:
    """Serves at `address` for as long as the block lasts, and passes on to `target`, HOST:PORT."""

    def __init__(
        self,
        target: str,
        *,
        seed: int = 0,
        listen: str = "127.0.0.1",
        port: int = 0,
        enter: Callable[[], None] = lambda: None,  # where the target is: done by who connects
    ) -> None:
        host, _, at = target.rpartition(":")
        self._enter = enter
        self._target, self._seed, self._listen = (host, int(at)), seed, (listen, port)
        self.to_server, self.to_caller = Direction("to the server"), Direction("to the caller")
        self.accepted = 0  # connections, so far
        self.refusing = False  # whether new connections are closed at once
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> str:
        host, port = self._server.getsockname()
        return f"{host}:{port}"

    def reset(self) -> None:
        """Break every connection now: both sides see it reset, and may connect again."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.reset()
        for pair in pairs:
            pair.join()

    def __enter__(self) -> Self:
        self._server = socket.create_server(self._listen)
        self._server.settimeout(_TURN_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(_CONNECT_SECONDS + _END_SECONDS)
        self._server.close()
        self.reset()

    def _accept(self) -> None:
        self._enter()
        while not self._stopping:
            try:
                caller, _ = self._server.accept()
            except TimeoutError:
                continue
            if self.refusing:
                caller.close()
                continue
            try:
                server = socket.create_connection(self._target, _CONNECT_SECONDS)
            except OSError:  # as if there were no proxy: it does not answer there either
                caller.close()
                continue
            pair = _Pair(caller, server, self, f"{self._seed} {self.accepted}")
            # Known before a byte passes: who heard an answer may break every connection.
            with self._lock:
                self._pairs = [one for one in self._pairs if one.alive] + [pair]
                self.accepted += 1
                pair.start()


class _Pair:
    """Both connections of one caller, and a thread for each direction."""

    def __init__(
        self, caller: socket.socket, server: socket.socket, proxy: Proxy, seed: str
    ) -> None:
        self._ends = (caller, server)
        for end in self._ends:
            end.settimeout(_TURN_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = ((caller, server, proxy.to_server), (server, caller, proxy.to_caller))
        self._streams = [
            _Stream(*way, self, random.Random(f"{seed} {way[2].name}")) for way in ways
        ]
        self._threads = [threading.Thread(target=one.run, daemon=True) for one in self._streams]
        self.over = False

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Both sides see the end of what came, as when a process closes its socket."""
        self.over = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Both sides see the connection reset."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.over = True

    def join(self) -> None:
        for thread in self._threads:
            thread.join(_END_SECONDS)
            assert not thread.is_alive(), "a thread of the proxy does not end"
        for end in self._ends:
            end.close()


@dataclass(slots=True)
class _Stream:
    """One direction of one connection."""

    source: socket.socket
    target: socket.socket
    direction: Direction
    pair: _Pair
    dice: random.Random
    held: deque[tuple[float, bytes]] = field(default_factory=deque)  # when it came, what
    held_bytes: int = 0
    faults: Faults | None = None  # those that `position` counts from
    position: int = 0
    next_flip: int = -1  # by chance; never: -1
    free_at: float = 0.0  # a limited link is busy until then

    def run(self) -> None:
        try:
            self._pass_all()
            if not self.pair.over:
                self.target.shutdown(socket.SHUT_WR)
        except OSError:  # either end is gone: the other shall know
            self.pair.end()

    def _pass_all(self) -> None:
        ended = False
        while not self.pair.over and (self.held or not ended):
            faults = self._heed()
            now = time.monotonic()
            if faults.stalled:
                time.sleep(_TURN_SECONDS)
                continue
            wait = _TURN_SECONDS
            if self.held:
                due = max(self.held[0][0] + faults.delay_seconds, self.free_at)
                wait = min(wait, max(0.0, due - now))
            if ended or self.held_bytes >= _HELD_BYTES_MAX:
                time.sleep(wait)
            elif select.select([self.source], [], [], wait)[0]:
                piece = self.source.recv(_PIECE_BYTES)
                ended = not piece
                if piece:
                    self.held.append((time.monotonic(), piece))
                    self.held_bytes += len(piece)
            self._pass_what_is_due(self._heed())  # as it is set now: the wait was long

    def _heed(self) -> Faults:
        """The setting of now; where it is a new one, bytes are counted anew."""
        faults = self.direction.faults
        if faults is not self.faults:
            self.faults, self.position = faults, 0
            self.next_flip = self._gap(faults) if faults.flip_rate else -1
        return faults

    def _pass_what_is_due(self, faults: Faults) -> None:
        now = time.monotonic()
        while self.held and not faults.stalled and not self.pair.over:
            came, piece = self.held[0]
            if now < max(came + faults.delay_seconds, self.free_at):
                return
            some = piece
            if faults.bytes_per_second:  # in parts of one turn, so that it flows evenly
                some = piece[: max(1, int(faults.bytes_per_second * _TURN_SECONDS))]
                self.free_at = max(self.free_at, now - _TURN_SECONDS)
                self.free_at += len(some) / faults.bytes_per_second
            if faults.close_after_bytes is not None:
                some = some[: max(0, faults.close_after_bytes - self.position)]
            self._send(some, faults)
            if faults.close_after_bytes == self.position:
                self.pair.end()
                return
            self.held.popleft()
            if rest := piece[len(some) :]:
                self.held.appendleft((came, rest))
            self.held_bytes -= len(some)

    def _send(self, piece: bytes, faults: Faults) -> None:
        first, last = self.position, self.position + len(piece)
        flips = []
        if faults.flip_at_byte is not None and first <= faults.flip_at_byte < last:
            flips.append((faults.flip_at_byte, self.dice.randrange(8)))
        # Which bit is drawn with the byte: where pieces end changes nothing.
        while first <= self.next_flip < last:
            flips.append((self.next_flip, self.dice.randrange(8)))
            self.next_flip += 1 + self._gap(faults)
        changed = bytearray(piece)
        for at, bit in flips:
            changed[at - first] ^= 1 << bit
        left = memoryview(changed)
        while left and not self.pair.over:
            with contextlib.suppress(TimeoutError):  # a receiver that does not read
                left = left[self.target.send(left) :]
        self.position = last
        self.direction.passed(changed, len(flips))

    def _gap(self, faults: Faults) -> int:
        """Bytes that pass unharmed before the next one that does not."""
        return int(self.dice.expovariate(faults.flip_rate))
