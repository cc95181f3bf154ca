"""One session's data connection, in a thread of its own: its calls, and what it is told to send.

Bytes move between slots and the socket where they lie. What may be moved the node's loop is asked
(`kvstore.node.moves`), or it has decided that before it says what to send
(`kvstore.node.read_ahead`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, TypeAlias, TypeVar

import numpy as np

from kvstore.errors import Unavailable
from kvstore.layout import IDENTITY_OFFSET, Fragment
from kvstore.limits import DATA_CALL_BLOCKS_MAX, HANDLE_BYTES_MAX, PROBE_BYTES_MAX, KiB, MiB
from kvstore.memory.arena import Arena
from kvstore.node.coming import Coming
from kvstore.node.moves import Held, Moves
from kvstore.node.read_ahead import Orders
from kvstore.node.sessions import Session
from kvstore.node.ucx_calls import UcxCalls, bytes_of
from kvstore.telemetry import Telemetry
from kvstore.transfer.calls import Statuses
from kvstore.transfer.frames import CALL, LOOKED, Found, Op, Status
from kvstore.transfer.stream import DataStream

T = TypeVar("T")
_Answers: TypeAlias = list[Held | Status]
_Holding: TypeAlias = Callable[[Session, Sequence[bytes], Fragment], _Answers]

_IDLE_SECONDS = 1.0  # how often a quiet connection looks whether its session is over
_ASK_SECONDS = 10.0  # that the node's loop may take to answer
_TURN_STRIPS = 16_384  # that the node's loop is asked about in one go: in some 100 µs
_TABLES_BYTES = 8 * MiB  # of strips that are taken from a caller's memory in one go
_PROBE_PIECE = memoryview(bytes(256 * KiB))  # sent again and again: probes hold no memory


class DataConnection:
    """Of one session, in its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: DataStream,
        session: Session,
        arena: Arena,
        moves: Moves,
        counters: Telemetry,
        ucx: UcxCalls,
        orders: Orders,
    ) -> None:
        self._loop, self._stream, self._session = loop, stream, session
        self._arena, self._view = arena, arena.view
        self._moves, self._counters = moves, counters
        self._ucx, self._orders = ucx, orders

    def serve(self) -> None:
        """Answer calls until the caller hangs up or its session ends."""
        while True:
            while self._stream.quiet(_IDLE_SECONDS, self._orders.bell):
                if not self._session.streaming:
                    return
            if not self._session.streaming:
                return  # what was opened before its end is not sent after it
            ordered = self._orders.take()
            if ordered:
                self._send(ordered)
                continue
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
                self._look(handles, fragment)
            else:
                return

    def _read(self, handles: Sequence[bytes], fragment: Fragment) -> None:
        self._send(self._hold(self._moves.reading, handles, fragment))

    def _look(self, handles: Sequence[bytes], fragment: Fragment) -> None:
        looked: list[tuple[Found, int]] = []
        for some in _turns(handles, fragment):
            looked += self._ask(self._moves.look, self._session, some, fragment)
        self._stream.send(b"".join(LOOKED.pack(*one) for one in looked))

    def _send(self, held: Sequence[Held | Status]) -> None:
        """What answers a READ of these."""
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
            yield self._identity(one)
            at = one.slot.offset + one.layout.head_bytes
            for start, size in one.layout.runs(one.slot.tokens, one.fragment):
                yield self._view[at + start : at + start + size]

    def _identity(self, one: Held) -> memoryview:
        """A block's identity and table: those of one call may be of several layouts."""
        at = one.slot.offset + IDENTITY_OFFSET
        return self._view[at : at + one.layout.root_bytes]

    def _write(self, handles: Sequence[bytes], fragment: Fragment) -> None:
        held = self._hold(self._moves.writing, handles, fragment)
        came = 0
        try:
            statuses = _statuses(held)
            self._stream.send(statuses)
            settled: list[Statuses] = []
            for some in Coming.few(self._arena, _moved(held)):
                some.receive(self._stream)
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
                asked = self._hold(self._moves.reading, handles[some], fragment)
                held.extend(asked)
                fitting = self._ucx.fitting(asked, places[some], region)
                moved.extend(fitting)
                yield fitting

        try:
            with closing(self._ucx.write(steps(), places, region)) as landing:
                landed = next(landing, [])
                self._stream.send(_statuses(moved))
                while landed:
                    if not self._session.streaming:
                        raise Unavailable("its session is over")
                    self._stream.send_all(map(self._identity, landed))
                    landed = next(landing, [])
            sent = bytes_of(moved)
        finally:
            self._tell(self._over, "ucx_sent_bytes", sent, held)

    def _push(self, handles: Sequence[bytes], fragment: Fragment, region: int) -> None:
        places = self._ucx.places(len(handles), region)
        held = self._hold(self._moves.writing, handles, fragment)
        came = 0
        try:
            moved = self._ucx.fitting(held, places, region)
            self._stream.send(_statuses(moved))
            settled: list[Statuses] = []
            for some in _few(moved):
                coming = list(Coming.few(self._arena, _moved(moved[some])))
                self._stream.receive_into(entries for one in coming for entries in one.entries)
                self._ucx.read(moved[some], places[some], region)
                settled += [one.settle() for one in coming]
            came = bytes_of(moved)
            statuses = _with(_statuses(moved), settled)
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

    def _hold(self, what: _Holding, handles: Sequence[bytes], fragment: Fragment) -> _Answers:
        """What the node's loop holds of these to be moved: all of them, or none where it fails."""
        held: _Answers = []
        try:
            for some in _turns(handles, fragment):
                held += self._ask(what, self._session, some, fragment)
        except BaseException:
            self._tell(self._moves.let_go, held)
            raise
        return held

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


def _turns(handles: Sequence[bytes], fragment: Fragment) -> Iterator[Sequence[bytes]]:
    """All of these, in order, so many at a time that the node's loop has turns for others between:
    a strip table may have 65,536 entries, and each may be looked at."""
    count = max(1, _TURN_STRIPS // max(1, fragment.layers * fragment.heads))
    for first in range(0, len(handles), count):
        yield handles[first : first + count]


def _few(held: Sequence[Held | Status]) -> Iterator[slice]:
    """All of these, in order, so many at a time that what their tables take stays small."""
    first = size = 0
    for row, one in enumerate(held):
        table = one.layout.root_bytes if isinstance(one, Held) else 0
        if size and size + table > _TABLES_BYTES:
            yield slice(first, row)
            first, size = row, 0
        size += table
    yield slice(first, len(held))


def _statuses(held: Sequence[Held | Status]) -> bytes:
    return bytes(Status.MOVED if isinstance(one, Held) else one for one in held)


def _with(statuses: bytes, settled: Sequence[Statuses]) -> bytes:
    """The same, with what has become of those that were to be moved."""
    all_ = np.frombuffer(statuses, dtype=np.uint8).copy()
    if settled:
        all_[all_ == Status.MOVED] = np.concatenate(settled)
    return all_.tobytes()
