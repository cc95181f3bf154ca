"""What comes on a data connection, hashed while it lands, with no turn through the interpreter.

The same promises as those of `DataStream.receive_into`: exact numbers of bytes, by a deadline, or
`Unavailable`. For callers; a storage node compiles nothing.
"""

from __future__ import annotations

import errno
import os
import time

import numpy as np
import numpy.typing as npt

from kvstore.kernels import socket_read
from kvstore.limits import DATA_RATE_MIN
from kvstore.transfer.stream import DataStream


def receive_hashed(
    stream: DataStream, pieces: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64] | None:
    """Fill pieces of this process's memory, rows of address and bytes, in order.

    Returns what a strip table says of each; None, with nothing received, where bytes must be
    unsealed first. Raises `Unavailable`."""
    descriptor = stream.descriptor
    if descriptor is None:
        return None
    entries, state = np.zeros(len(pieces), np.uint64), np.zeros(4, np.int64)
    until, rate = time.monotonic() + stream.stall_seconds, float(DATA_RATE_MIN)
    while state[socket_read.AT] < len(pieces):
        socket_read.receive(descriptor, pieces, entries, until, rate, state)
        why = int(state[socket_read.WHY])
        if why and why != errno.EINTR:  # a signal has had its handler run by now
            raise stream.failed(_error(why))
    return entries


def _error(why: int) -> OSError:
    if why == socket_read.HUNG_UP:
        return ConnectionResetError("it hung up")
    return TimeoutError() if why == socket_read.TOO_SLOW else OSError(why, os.strerror(why))
