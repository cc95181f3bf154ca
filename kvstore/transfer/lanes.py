"""A bounded pool of data connections to one node: one call is spread over a few of them.

Whoever wants one while all are busy waits for it, for a bounded time. A connection that failed is
closed, and those that lay idle beside it too: what cut one has most likely cut them. Nothing here
is compiled, so a storage node can pull from another with it.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from kvstore.errors import SessionEnded, Unavailable
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
from kvstore.transfer.stream import DataStream
from kvstore.transfer.term import Term

_SPREAD_BYTES = 2 * MiB  # for less than this on each, another connection does not pay


class Lane:
    """One connection, and the buffer through which its blocks pass where they must."""

    staging_bytes = DATA_STAGING_BYTES  # of that buffer, unless a block is larger

    def __init__(self, stream: DataStream) -> None:
        self.stream = stream
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

    def write(
        self,
        handles: Sequence[bytes],
        source: Landing,
        rows: Ints,
        fragment: Fragment,
        prepare: Callable[[Ints], None],
    ) -> Statuses:
        """As `calls.write`, by the way of this lane."""
        return calls.write(self.stream, handles, source, rows, fragment, prepare)

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
        tls: ssl.SSLContext | None = None,
        lane_of: Callable[[DataStream], Lane] = Lane,
        streams: int = DATA_STREAMS,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._session, self._token = session, token
        self._deadline, self._tls = deadline_seconds, tls
        self._lane_of, self._streams = lane_of, streams
        self._changed = threading.Condition()
        self._idle: list[Lane] = []
        self._busy = 0
        self._closed = False
        self._threads = ThreadPoolExecutor(max(1, DATA_STREAMS - 1), "moonpool-tcp")
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

    def look(self, slots: Slots, fragment: Fragment) -> calls.Looked:
        """What each slot is now."""
        answers = [calls.Looked(np.zeros(0, np.uint8), np.zeros(0, np.int64))]
        with self.lane() as lane:
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
        block = fragment.layers * fragment.heads * layout.strip_stride
        lanes = max(1, min(self._streams, count * block // _SPREAD_BYTES))
        shares = np.array_split(np.arange(count, dtype=np.int64), lanes)

        def share(rows: Ints) -> None:
            with self.lane() as lane:
                for first in range(0, len(rows), DATA_CALL_BLOCKS_MAX):
                    move(lane, rows[first : first + DATA_CALL_BLOCKS_MAX])

        others: list[Future[None]] = []
        try:
            for rows in shares[1:]:
                with self._changed:
                    self._check_open()
                    others.append(self._threads.submit(share, rows))
            share(shares[0])
        finally:
            for other in others:
                other.exception()  # wait for all: they write to the caller's memory
        for other in others:
            other.result()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A connection that is nobody else's meanwhile; raises `Unavailable`, `SessionEnded`."""
        lane, good = self._take(), False
        try:
            if lane is None:
                lane = self._connected()
            yield lane
            good = True
        finally:
            self._give(lane, good)

    def close(self) -> None:
        """Let calls under way finish, each of which has a deadline, then hang up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy == 0)
            lanes, self._idle = self._idle, []
        for lane in lanes:
            lane.close()
        self._threads.shutdown()

    def _take(self) -> Lane | None:
        """Leave to use a connection, and one that lies idle if there is any."""
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._closed or self._busy < DATA_SESSION_CONNECTIONS_MAX, STALL_SECONDS
            )
            self._check_open()
            if not free:
                raise Unavailable(f"all {DATA_SESSION_CONNECTIONS_MAX} data connections are busy")
            self._busy += 1
            return self._idle.pop() if self._idle else None

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the session's data connections are closed: open the blocks again")

    def _give(self, lane: Lane | None, good: bool) -> None:
        with self._changed:
            self._busy -= 1
            over = [] if lane is None else [lane]
            if good and not self._closed:
                self._idle += over
                over = []
            elif not good:
                over += self._idle
                self._idle = []
            self._changed.notify_all()
        for one in over:
            one.close()

    def _connected(self) -> Lane:
        stream = DataStream.connect(self._address, self._deadline, self._tls)
        try:
            calls.greet(stream, self._session, self._token)
            return self._lane_of(stream)
        except BaseException:
            stream.close()
            raise
