"""What comes and goes on a data connection, hashed on its way without the interpreter.

The same promises as those of `DataStream`: exact numbers of bytes, by a deadline, or `Unavailable`.
Nothing has moved where it says that it cannot: where bytes are sealed on their way, or the process
has no compiled code.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.limits import DATA_RATE_MIN
from kvstore.transfer import socket_kernels
from kvstore.transfer.stream import DataStream

Pieces = npt.NDArray[np.uint64]
"""Rows of address and bytes, of this process's memory."""


def receive_hashed(stream: DataStream, pieces: Pieces) -> npt.NDArray[np.uint64] | None:
    """Fill pieces in order. Returns what a strip table says of each; None, with nothing received,
    where it cannot. Raises `Unavailable`."""
    kernels = _kernels(stream, pieces)
    if kernels is None:
        return None
    entries = np.zeros(len(pieces), np.uint64)
    _move(stream, kernels.sockets, kernels.read.receive, pieces, entries)
    return entries


def send_hashed(stream: DataStream, pieces: Pieces, entries: npt.NDArray[np.uint64]) -> bool:
    """Send rows in order, of each its part of a strip table and then its strips; False, with
    nothing sent, where it cannot. Raises `Unavailable`.

    `entries` (rows, strips) are made here, and are the first of each row's 1 + strips `pieces`.
    """
    kernels = _kernels(stream, pieces)
    if kernels is None:
        return False
    _move(stream, kernels.sockets, kernels.write.send, pieces, entries)
    return True


def _kernels(stream: DataStream, pieces: Pieces) -> socket_kernels.Kernels | None:
    """Nobody loads them for bytes that are sealed."""
    if stream.descriptor is None:
        return None
    return socket_kernels.at_hand(int(pieces[:, 1].sum()))


def _move(
    stream: DataStream,
    terms: Any,  # `kvstore.kernels.sockets`
    move: Callable[..., None],
    pieces: Pieces,
    entries: npt.NDArray[np.uint64],
) -> None:
    """Call until all has moved: a signal's handler runs in between."""
    state = np.zeros(5, np.int64)
    until, rate = time.monotonic() + stream.stall_seconds, float(DATA_RATE_MIN)
    moved, still_until = 0, until
    while state[terms.AT] < len(pieces):
        move(stream.descriptor, pieces, entries, until, rate, state)
        why, now = int(state[terms.WHY]), time.monotonic()
        if state[terms.MOVED] > moved:
            moved, still_until = int(state[terms.MOVED]), now + stream.stall_seconds
        elif why == errno.EINTR and now > still_until:
            why = terms.TOO_SLOW  # the socket's own time begins anew with each call
        if why and why != errno.EINTR:
            raise stream.failed(_error(terms, why))


def _error(terms: Any, why: int) -> OSError:
    if why == terms.HUNG_UP:
        return ConnectionResetError("it hung up")
    return TimeoutError() if why == terms.TOO_SLOW else OSError(why, os.strerror(why))
