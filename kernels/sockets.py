"""What compiled code that moves bytes over a socket shares: what it asks of the kernel, and the
state of a call.

A call's bytes are pieces: rows of address and bytes, as the kernel's own iovecs are. It can end
before all of them have moved, and go on from where it ended.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .inner import inner
from .xxh3 import U

AT, INTO, MOVED, READY, WHY = range(5)
"""Of a call's state: pieces that have moved whole, bytes of the next one, bytes in all; rows that
are hashed (of those that are sent); why it ended: 0 where all has moved, one of the following, or
an error number."""
HUNG_UP, TOO_SLOW = -1, -2

NEAR_BYTES = 256 * 1024  # that the kernel is asked to move at once, unless a piece has more
PIECES_MAX = 512  # of one such question; the kernel takes 1,024
MESSAGE_WORDS = 7  # of a struct msghdr

types: Any = numba.types
_FIRST_PIECE, _PIECE_COUNT = 2, 3  # its words
_MONOTONIC = np.int32(1)
_clock_gettime: Any = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.uint64)
)
_errno: Any = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())


@inner
def error_number() -> Any:
    """Of the call to the kernel that came before."""
    return _errno()[0]


@inner
def behind(clock: Any, until: Any) -> Any:
    """Whether it is later than `until`, in seconds of the monotonic clock."""
    _clock_gettime(_MONOTONIC, U(clock.ctypes.data))
    return clock[0] + 1e-9 * clock[1] > until


@inner
def asked_at_once(pieces: Any, at: Any) -> Any:
    """The end of those pieces from `at` on that one question to the kernel has."""
    end, size = at + 1, pieces[at, 1]
    while end < min(len(pieces), at + PIECES_MAX) and size + pieces[end, 1] <= U(NEAR_BYTES):
        size += pieces[end, 1]
        end += 1
    return end


@inner
def point(message: Any, pieces: Any, at: Any, end: Any) -> None:
    """Make a message of these pieces."""
    message[_FIRST_PIECE] = U(pieces.ctypes.data) + U(16 * at)
    message[_PIECE_COUNT] = U(end - at)
