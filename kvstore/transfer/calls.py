"""The caller's half of what `kvstore.transfer.frames` describes, one call at a time.

Statuses come back as they were sent; what the bytes are worth is for the caller to prove. A call
that fails raises `Unavailable`, and its connection is of no use after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.errors import Crowded, SessionEnded, Unavailable
from kvstore.layout import Fragment
from kvstore.limits import PROBE_BYTES_MIN
from kvstore.transfer.frames import CALL, HELLO, HELLO_MAGIC, LOOKED, WELCOME, Op, Status, Welcome
from kvstore.transfer.landing import Landing, chosen
from kvstore.transfer.probe import Probe
from kvstore.transfer.protocol import Ints
from kvstore.transfer.stream import DataStream

_TRIPS = 5
_TELLING_SECONDS = 0.05  # there and back: less is mostly chance

Statuses = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Looked:
    """What slots are now (`frames.Found`), and how many leading layers of a fragment they have."""

    found: npt.NDArray[np.uint8]
    layers: Ints


def greet(stream: DataStream, session: bytes, token: bytes) -> int:
    """Say whose connection this is; the number by which the node knows it, 0 for none.

    Raises `SessionEnded` where the node knows no such session, `Crowded` where it has as many
    connections as it, or its tenant, may have."""
    stream.send(HELLO.pack(HELLO_MAGIC, session, token))
    magic, answer, number = WELCOME.unpack(stream.receive(WELCOME.size))
    if magic != HELLO_MAGIC:
        raise Unavailable("what answers there is no data port of a node")
    if answer == Welcome.FULL:
        raise Crowded("the node has no data connection left for this tenant")
    if answer != Welcome.COME_IN:
        raise SessionEnded("the node does not know this session, or not by this token")
    return int(number)


def read(
    stream: DataStream, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
) -> Iterator[Ints]:
    """Fill rows of a landing with a fragment of the blocks of these handles, one a row.

    Yields which of the call's blocks have landed, a few at a time: the caller is done with these
    before it asks for more. Of the others the landing holds nothing new.
    """
    _call(stream, Op.READ, handles, fragment)
    yield from landed(stream, len(handles), into, rows, fragment)


def landed(
    stream: DataStream, count: int, into: Landing, rows: Ints, fragment: Fragment
) -> Iterator[Ints]:
    """As `read`, of so many blocks that come without being asked for."""
    for some in few(moved(receive_statuses(stream, count)), into.together(fragment)):
        into.receive(stream, rows[some], fragment)
        yield some


def write(
    stream: DataStream,
    handles: Sequence[bytes],
    source: Landing,
    rows: Ints,
    fragment: Fragment,
) -> Statuses:
    """Lay a fragment of rows of a landing into the windows of these handles, one a row."""
    _call(stream, Op.WRITE, handles, fragment)
    statuses = receive_statuses(stream, len(handles))
    for some in few(moved(statuses), source.together(fragment)):
        source.send(stream, rows[some], fragment)
    arrived = receive_statuses(stream, len(handles))
    return np.where(statuses == Status.MOVED, arrived, statuses)


def look(stream: DataStream, handles: Sequence[bytes], fragment: Fragment) -> Looked:
    """What the slots of these handles are now."""
    _call(stream, Op.LOOK, handles, fragment)
    said = stream.receive(LOOKED.size * len(handles))
    both = np.array(list(LOOKED.iter_unpack(said)), dtype=np.int64).reshape(-1, 2)
    layers = np.minimum(both[:, 1], fragment.layers)
    return Looked(both[:, 0].astype(np.uint8), layers)


def probe(stream: DataStream, bytes_max: int) -> Probe:
    """How fast bytes come here, and go there: of ever more of them, until that takes long enough
    to tell, so that a slow link is measured soon and with little."""
    trip, size = min(_trip(stream) for _ in range(_TRIPS)), min(PROBE_BYTES_MIN, bytes_max)
    while True:
        came, went = _there_and_back(stream, size)
        if size == bytes_max or came + went > _TELLING_SECONDS:
            break
        size = min(4 * size, bytes_max)
    # Either took a round trip more than its bytes did; on a fast link that is most of it.
    back, there = max(came - trip, 1e-9), max(went - trip, 1e-9)
    return Probe(trip, size / there, size / back)


def _trip(stream: DataStream) -> float:
    began = time.perf_counter()
    _probe_call(stream, 0)
    stream.receive(1)
    return time.perf_counter() - began


def _there_and_back(stream: DataStream, size: int) -> tuple[float, float]:
    """Seconds in which so many bytes came, and then went."""
    room, began = memoryview(bytearray(size)), time.perf_counter()
    _probe_call(stream, size)
    stream.receive_into([room])
    came = time.perf_counter()
    stream.send(room)
    stream.receive(1)
    return came - began, time.perf_counter() - came


def moved(statuses: Statuses) -> Ints:
    return chosen(statuses == Status.MOVED)


def few(rows: Ints, count: int) -> Iterator[Ints]:
    """All of them, in order; at a time those that lie within one run of so many rows, since rows
    that are further from each other may have the same place in a landing."""
    for some in np.split(rows, np.flatnonzero(np.diff(rows // count)) + 1):
        if len(some):
            yield some


def _call(stream: DataStream, op: Op, handles: Sequence[bytes], fragment: Fragment) -> None:
    size = len(handles[0])
    assert all(len(one) == size for one in handles), "handles of one node have one size"
    part = (fragment.layer_first, fragment.layers, fragment.head_first, fragment.heads)
    stream.send(CALL.pack(op, size, len(handles), *part, 0, 0), b"".join(handles))


def _probe_call(stream: DataStream, size: int) -> None:
    stream.send(CALL.pack(Op.PROBE, 0, 0, 0, 0, 0, 0, 0, size))


def receive_statuses(stream: DataStream, count: int) -> Statuses:
    """What the owner says of each block of a call."""
    return np.frombuffer(stream.receive(count), dtype=np.uint8)
