"""A bounded pool of data connections to one node: one call is spread over a few of them.

Whoever wants one while all are busy, or while the node has no more, waits for it, for a bounded
time. A connection that failed is closed, and those that lay idle beside it too: what cut one has
most likely cut them. Nothing here is compiled, so a storage node can pull from another with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from kvstore.errors import Crowded, SessionEnded, Unavailable
from kvstore.home import Home
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import (
    DATA_CALL_BLOCKS_MAX,
    DATA_SESSION_CONNECTIONS_MAX,
    DATA_STAGING_BYTES,
    DATA_STREAMS,
    PROBE_BYTES_MAX,
    STALL_SECONDS,
    MiB,
)
from kvstore.transfer import calls
from kvstore.transfer.calls import Statuses
from kvstore.transfer.landing import Landing
from kvstore.transfer.probe import Probe
from kvstore.transfer.protocol import Ints, Mask, Slots
from kvstore.transfer.stream import DataStream, LatestTls, host_and_port
from kvstore.transfer.term import Term
from kvstore.transfer.ucx_pieces import PiecesTaken

_SPREAD_BYTES = 2 * MiB  # for less than this on each, another connection does not pay
_CROWDED_SECONDS = 1.0  # in which a node that had no connection left is not asked for one again
# One call is spread over no more than there are cores to receive: more would only take turns.
STREAMS = min(DATA_STREAMS, len(os.sched_getaffinity(0)))


class Lane:
    """One connection, and the buffer through which its blocks pass where they must."""

    staging_bytes = DATA_STAGING_BYTES  # of that buffer, unless a block is larger

    def __init__(self, stream: DataStream) -> None:
        self.stream = stream
        self.number = 0  # by which the node knows it; 0: it cannot be told to send there
        self.memory = np.zeros(0, dtype=np.uint8)

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes, with whatever passed here before."""
        if len(self.memory) < size:
            self.memory = np.zeros(size, dtype=np.uint8)
        return self.memory

    def read(
        self, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
    ) -> Iterator[Ints]:
        """As `calls.read`, by the way of this lane."""
        return calls.read(self.stream, handles, into, rows, fragment)

    def landed(
        self, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
    ) -> Iterator[Ints]:
        """The same without asking: the node was told to send them."""
        return calls.landed(self.stream, len(handles), into, rows, fragment)

    def write(
        self,
        handles: Sequence[bytes],
        source: Landing,
        rows: Ints,
        fragment: Fragment,
    ) -> Statuses:
        """As `calls.write`, by the way of this lane."""
        return calls.write(self.stream, handles, source, rows, fragment)

    def end(self) -> None:
        """Make the call under way fail; from any thread."""
        self.stream.end()

    def close(self) -> None:
        """Hang up; for whoever uses it."""
        self.stream.close()


class Lanes:
    """Data connections to one node, tied to one session. Safe to use from several threads."""

    def __init__(
        self,
        address: str,
        session: bytes,
        token: bytes,
        deadline_seconds: float,
        tls: LatestTls | None = None,
        lane_of: Callable[[DataStream], Lane] = Lane,
        streams: int = STREAMS,
    ) -> None:
        self._address = host_and_port(address)
        self._session, self._token = session, token
        self._deadline, self._tls = deadline_seconds, tls
        self._lane_of, self._streams = lane_of, streams
        self._home, self._changed = Home(), threading.Condition()
        self._idle: list[Lane] = []
        self._spare: set[Lane] = set()  # held by somebody, with no call under way; busy too
        self._busy = 0
        self._crowded_until = 0.0
        self._closed = False
        self._threads = _pool()
        try:
            with self.lane():
                pass  # a node that cannot be reached this way is found out now
        except BaseException:
            self.close()
            raise

    def pull(
        self,
        layout: SlotLayout,
        slots: Slots,
        fragment: Fragment,
        into: Landing,
        rows: Ints,
        term: Term | None = None,
    ) -> Mask:
        """Slots -> a landing, straight; `rows[i]` of it is for slot i. True where proven.

        Raises `Unavailable`, also when the term is ended before all have come."""
        good, ends = np.zeros(len(slots), dtype=bool), term or Term()

        def receive(lane: Lane, some: Ints) -> None:
            picked, places = slots.pick(some), rows[some]
            handles = picked.handles.tolist()
            with ends.of(lane):
                for came in lane.read(handles, into, places, fragment):
                    good[some[came]] = into.proven(places[came], fragment, picked.roots[came])

        self.spread(layout, len(slots), fragment, receive)
        return good

    def look(self, slots: Slots, fragment: Fragment, term: Term | None = None) -> calls.Looked:
        """What each slot is now. Raises `Unavailable`, also when the term is ended before."""
        answers = [calls.Looked(np.zeros(0, np.uint8), np.zeros(0, np.int64))]
        with self.lane() as lane, (term or Term()).of(lane):
            for first in range(0, len(slots), DATA_CALL_BLOCKS_MAX):
                some = slots.handles[first : first + DATA_CALL_BLOCKS_MAX].tolist()
                answers.append(calls.look(lane.stream, some, fragment))
        return calls.Looked(
            np.concatenate([one.found for one in answers]),
            np.concatenate([one.layers for one in answers]),
        )

    def probe(self, bytes_max: int = PROBE_BYTES_MAX, term: Term | None = None) -> Probe:
        """What one connection to the node can do."""
        with self.lane() as lane, (term or Term()).of(lane.stream):
            return calls.probe(lane.stream, bytes_max)

    def spread(
        self,
        layout: SlotLayout,
        count: int,
        fragment: Fragment,
        move: Callable[[Lane, Ints], None],
    ) -> None:
        """Move `count` blocks, in calls of bounded size, on as many connections as pay."""
        if not count:
            return

        def share(rows: Ints) -> None:
            with self.lane() as lane:
                for first in range(0, len(rows), DATA_CALL_BLOCKS_MAX):
                    move(lane, rows[first : first + DATA_CALL_BLOCKS_MAX])

        lanes = self.paying(layout, count, fragment)
        self.together([partial(share, rows) for rows in shares(count, lanes)])

    def paying(self, layout: SlotLayout, count: int, fragment: Fragment) -> int:
        """How many connections pay for so many blocks; at least 1."""
        block = fragment.layers * fragment.heads * layout.strip_stride
        return max(1, min(self._streams, count * block // _SPREAD_BYTES))

    def together(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do these at once, the first of them in this thread, as are those that no other thread has
        begun by then; raises what one of them raises. None is under way, or begun later, once this
        returns or raises: they write to the caller's memory."""
        others = [(job, Future[None]()) for job in jobs[1:]]
        try:
            for job, answer in others:
                with self._changed:
                    self._check_open()
                    self._begin(job, answer)
            jobs[0]()
            for job, answer in others:
                if answer.cancel():
                    job()
        finally:
            for _, answer in others:
                if not answer.cancel():
                    answer.exception()
        for _, answer in others:
            if not answer.cancelled():
                answer.result()

    def _begin(self, job: Callable[[], None], answer: Future[None]) -> None:
        """With the lock held. Where no thread can be had for it, nobody begins it."""
        try:
            self._threads.submit(_answer, job, answer)
        except RuntimeError:  # it stands in line all the same, and holds its caller's memory there
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = _pool()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A connection that is nobody else's meanwhile; raises `Unavailable`, `SessionEnded`."""
        with self._call(self._taken(DATA_SESSION_CONNECTIONS_MAX, STALL_SECONDS)) as lane:
            yield lane

    def spare(self) -> Lane:
        """A connection to be held for a while, if the others are enough for calls meanwhile: to be
        called on once by `calling`, or given back, or dropped. Raises as `lane`, but waits for
        nobody."""
        lane = self._taken(DATA_SESSION_CONNECTIONS_MAX // 2, 0.0)
        with self._changed:
            self._spare.add(lane)
            self._changed.notify_all()
        return lane

    @contextmanager
    def calling(self, lane: Lane) -> Iterator[None]:
        """A call on one that `spare` gave; raises `Unavailable`, `SessionEnded`."""
        self._home.check()
        with self._changed:
            self._check_open()
            self._spare.remove(lane)
        with self._call(lane):
            yield

    def give(self, lane: Lane) -> None:
        """One that `spare` gave; nothing is under way on it."""
        with self._changed:
            if lane in self._spare:  # else it was hung up with all the others
                self._spare.remove(lane)
                self._back(lane)

    def drop(self, lane: Lane) -> None:
        """One that `spare` gave: nobody wants what is under way on it."""
        if not self._home.here:
            return  # the process that took it may
        with self._changed:
            if lane not in self._spare:
                return
            self._spare.remove(lane)
            self._busy -= 1
            self._changed.notify_all()
        lane.close()

    def close(self) -> None:
        """Let calls under way finish, each of which has a deadline, then hang up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy == len(self._spare))
            lanes = [*self._idle, *self._spare]
            self._busy, self._idle, self._spare = 0, [], set()
        for lane in lanes:
            lane.close()
        self._threads.shutdown()

    def _taken(self, most: int, seconds: float) -> Lane:
        """One that lies idle, or a new one, once fewer than `most` are in use."""
        self._home.check()
        with self._changed:
            free = self._changed.wait_for(lambda: self._closed or self._busy < most, seconds)
            self._check_open()
            if not free:
                raise Unavailable(f"{most} data connections or more are busy")
            self._busy += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connected()
        except Crowded as crowded:
            return self._another(crowded, seconds)
        except BaseException:
            self._failed(None)
            raise

    def _another(self, crowded: Crowded, seconds: float) -> Lane:
        """One of those that there are, once it lies idle; nobody waits where none is in use."""
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closed or self._idle or self._busy == len(self._spare), seconds
            )
            self._check_open()
            if not self._idle:
                raise crowded
            self._busy += 1
            return self._idle.pop()

    @contextmanager
    def _call(self, lane: Lane) -> Iterator[Lane]:
        try:
            yield lane
        except PiecesTaken:  # nothing is under way on it
            self._back(lane)
            raise
        except BaseException:
            self._failed(lane)
            raise
        self._back(lane)

    def _back(self, lane: Lane) -> None:
        """Whoever closes takes it from there."""
        with self._changed:
            self._busy -= 1
            self._idle.append(lane)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the session's data connections are closed: open the blocks again")

    def _failed(self, lane: Lane | None) -> None:
        """A call on it, or a new connection: those that lie idle have most likely failed too."""
        with self._changed:
            self._busy -= 1
            over = self._idle if lane is None else [lane, *self._idle]
            self._idle = []
            self._changed.notify_all()
        for one in over:
            one.close()

    def _connected(self) -> Lane:
        if time.monotonic() < self._crowded_until:
            raise Crowded("the node had no data connection left for this tenant a moment ago")
        tls = None if self._tls is None else self._tls()
        stream = DataStream.connect(self._address, self._deadline, tls)
        try:
            number = calls.greet(stream, self._session, self._token)
            lane = self._lane_of(stream)
            lane.number = number
            return lane
        except BaseException as error:
            stream.close()
            if isinstance(error, Crowded):
                self._crowded_until = time.monotonic() + _CROWDED_SECONDS
            raise


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, STREAMS - 1), "moonpool-tcp")


def _answer(job: Callable[[], None], answer: Future[None]) -> None:
    """Do it, unless its answer was called off."""
    if answer.set_running_or_notify_cancel():
        try:
            job()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)


def shares(count: int, lanes: int) -> list[Ints]:
    """Which of so many blocks go on each connection: as near to equal as can be, in order."""
    return np.array_split(np.arange(count, dtype=np.int64), lanes)
