"""Rows of bytes to a socket from where they lie, hashed as they go: one call, without the
interpreter or its lock.

A row is hashed when its turn comes, so that the kernel finds it in the cache and memory is read
once. What was made of it goes before it. Nothing here checks an address or a size: the caller has.

Importing compiles, or loads what an earlier import compiled: no request waits for a compiler.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .accumulator import stack_lanes
from .inner import KEPT, OWN, inner
from .sockets import (
    AT,
    INTO,
    MESSAGE_WORDS,
    MOVED,
    READY,
    TOO_SLOW,
    WHY,
    asked_at_once,
    behind,
    error_number,
    point,
    types,
)
from .strip_entry import entry_of
from .xxh3 import U, xxh3_64

_NO_SIGNAL = np.int32(0x4000)  # MSG_NOSIGNAL
_sendmsg: Any = types.ExternalFunction(
    "sendmsg", types.intp(types.int32, types.uint64, types.int32)
)


@inner
def _hash_row(lanes: Any, pieces: Any, entries: Any, row: Any) -> None:
    """The first piece of a row is its entries themselves."""
    first = row * (entries.shape[1] + 1) + 1
    for i in range(entries.shape[1]):
        address, size = pieces[first + i, 0], np.int64(pieces[first + i, 1])
        entries[row, i] = entry_of(xxh3_64(address, size, lanes))


@njit(
    types.void(
        types.int64, types.uint64[:, ::1], types.uint64[:, ::1], types.float64, types.float64,
        types.int64[::1],
    ),
    nogil=True, cache=KEPT, **OWN,
)  # fmt: skip
def send(
    descriptor: Any, pieces: Any, entries: Any, until: Any, bytes_per_second: Any, state: Any
) -> None:
    """Send `pieces` in order: of each row its `entries`, which are made here of the others.

    `until`, in seconds of the monotonic clock, is when the first byte must have gone, and the
    others at `bytes_per_second`; the socket's own timeout ends a standstill.
    """
    lanes = stack_lanes()
    message = np.zeros(MESSAGE_WORDS, np.uint64)
    clock = np.zeros(2, np.int64)
    at, into, moved, ready = state[AT], U(state[INTO]), state[MOVED], state[READY]
    width = entries.shape[1] + 1
    state[WHY] = 0
    while at < len(pieces):
        end = asked_at_once(pieces, at)
        while ready * width < end:
            _hash_row(lanes, pieces, entries, ready)
            ready += 1
        point(message, pieces, at, end)
        pieces[at, 0] += into
        pieces[at, 1] -= into
        got = _sendmsg(np.int32(descriptor), U(message.ctypes.data), _NO_SIGNAL)
        error = error_number()
        pieces[at, 0] -= into
        pieces[at, 1] += into
        if got < 0:
            state[WHY] = error
            break
        moved += got
        into += U(got)
        while at < len(pieces) and into >= pieces[at, 1]:
            into -= pieces[at, 1]
            at += 1
        if at < len(pieces) and behind(clock, until + moved / bytes_per_second):
            state[WHY] = TOO_SLOW
            break
    state[AT], state[INTO], state[MOVED], state[READY] = at, np.int64(into), moved, ready
