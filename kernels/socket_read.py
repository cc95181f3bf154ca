"""Bytes from a socket to where they belong, hashed as they land: one call, without the interpreter
or its lock.

What came is hashed while the nearest cache holds it. Nothing here checks an address or a size: the
caller has.

Importing compiles, or loads what an earlier import compiled: no request waits for a compiler.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .accumulator import stack_lanes
from .inner import KEPT, OWN
from .sockets import (
    AT,
    HUNG_UP,
    INTO,
    MESSAGE_WORDS,
    MOVED,
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

_WAIT_FOR_ALL = np.int32(0x100)  # MSG_WAITALL
_recvmsg: Any = types.ExternalFunction(
    "recvmsg", types.intp(types.int32, types.uint64, types.int32)
)


@njit(
    types.void(
        types.int64, types.uint64[:, ::1], types.uint64[::1], types.float64, types.float64,
        types.int64[::1],
    ),
    nogil=True, cache=KEPT, **OWN,
)  # fmt: skip
def receive(
    descriptor: Any, pieces: Any, entries: Any, until: Any, bytes_per_second: Any, state: Any
) -> None:
    """Fill `pieces` in order, an entry of each.

    `until`, in seconds of the monotonic clock, is when the first byte must be there, and the others
    at `bytes_per_second`; the socket's own timeout ends a standstill.
    """
    lanes = stack_lanes()
    message = np.zeros(MESSAGE_WORDS, np.uint64)
    clock = np.zeros(2, np.int64)
    at, into, moved = state[AT], U(state[INTO]), state[MOVED]
    state[WHY] = 0
    while at < len(pieces):
        point(message, pieces, at, asked_at_once(pieces, at))
        pieces[at, 0] += into
        pieces[at, 1] -= into
        got = _recvmsg(np.int32(descriptor), U(message.ctypes.data), _WAIT_FOR_ALL)
        error = error_number()
        pieces[at, 0] -= into
        pieces[at, 1] += into
        if got <= 0:
            state[WHY] = HUNG_UP if got == 0 else error
            break
        moved += got
        into += U(got)
        while at < len(pieces) and into >= pieces[at, 1]:
            into -= pieces[at, 1]
            entries[at] = entry_of(xxh3_64(pieces[at, 0], np.int64(pieces[at, 1]), lanes))
            at += 1
        if at < len(pieces) and behind(clock, until + moved / bytes_per_second):
            state[WHY] = TOO_SLOW
            break
    state[AT], state[INTO], state[MOVED] = at, np.int64(into), moved
