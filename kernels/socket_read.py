"""Bytes from a socket to where they belong, hashed as they land: one call, without the interpreter
or its lock.

What came is hashed while the nearest cache holds it. Nothing here checks an address or a size: the
caller has. A call ends when all is there, or with the reason why more does not come; it can go on
from where it ended.

Importing compiles, or loads what an earlier import compiled: no request waits for a compiler.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit

from .accumulator import stack_lanes
from .inner import inner
from .stale import forget_stale
from .strip_loops import entry_of
from .xxh3 import U, xxh3_64

forget_stale(__file__)

NEAR_BYTES = 256 * 1024  # that are asked of the kernel at once, unless a piece has more
PIECES_MAX = 512  # of one such question; the kernel takes 1,024
HUNG_UP, TOO_SLOW = -1, -2  # reasons that are no error number

AT, INTO, MOVED, WHY = range(4)
"""Of a call's state: pieces that are whole, bytes of the next one, bytes in all; why it ended."""

types: Any = numba.types
_WAIT_FOR_ALL = np.int32(0x100)  # MSG_WAITALL
_MONOTONIC = np.int32(1)
_MESSAGE_WORDS, _FIRST_PIECE, _PIECE_COUNT = 7, 2, 3  # of a struct msghdr
_recvmsg: Any = types.ExternalFunction(
    "recvmsg", types.intp(types.int32, types.uint64, types.int32)
)
_clock_gettime: Any = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.uint64)
)
_errno: Any = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())


@inner
def _behind(clock: Any, until: Any) -> Any:
    _clock_gettime(_MONOTONIC, U(clock.ctypes.data))
    return clock[0] + 1e-9 * clock[1] > until


@inner
def _end_of_question(pieces: Any, at: Any) -> Any:
    """Pieces from `at` on that are asked for at once."""
    end, size = at + 1, pieces[at, 1]
    while end < min(len(pieces), at + PIECES_MAX) and size + pieces[end, 1] <= U(NEAR_BYTES):
        size += pieces[end, 1]
        end += 1
    return end


@njit(
    types.void(
        types.int64, types.uint64[:, ::1], types.uint64[::1], types.float64, types.float64,
        types.int64[::1],
    ),
    nogil=True, cache=True,
)  # fmt: skip
def receive(
    descriptor: Any, pieces: Any, entries: Any, until: Any, bytes_per_second: Any, state: Any
) -> None:
    """Fill `pieces` (addresses, bytes; iovecs of the kernel's) in order, an entry of each.

    `until`, in seconds of the monotonic clock, is when the first byte must be there, and the others
    at `bytes_per_second`; the socket's own timeout ends a standstill. `state[WHY]` is 0 once all
    are there, else `HUNG_UP`, `TOO_SLOW` or an error number.
    """
    lanes = stack_lanes()
    message = np.zeros(_MESSAGE_WORDS, np.uint64)
    clock = np.zeros(2, np.int64)
    at, into, moved = state[AT], U(state[INTO]), state[MOVED]
    state[WHY] = 0
    while at < len(pieces):
        end = _end_of_question(pieces, at)
        pieces[at, 0] += into
        pieces[at, 1] -= into
        message[_FIRST_PIECE] = U(pieces.ctypes.data) + U(16 * at)
        message[_PIECE_COUNT] = U(end - at)
        got = _recvmsg(np.int32(descriptor), U(message.ctypes.data), _WAIT_FOR_ALL)
        error = _errno()[0]
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
        if at < len(pieces) and _behind(clock, until + moved / bytes_per_second):
            state[WHY] = TOO_SLOW
            break
    state[AT], state[INTO], state[MOVED] = at, np.int64(into), moved
