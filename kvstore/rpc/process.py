"""What callers can make a process that serves hold, beside the messages that it admits."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

from kvstore.limits import KiB

_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 64 * KiB
_FILES_MAX = 4_096  # a connection costs gRPC some 20 KiB


def bound_the_process() -> None:
    """Call it once, before the process serves."""
    # Each message's buffer is mapped by itself and leaves the process when it is freed. Else glibc
    # keeps, in each of gRPC's threads, room for the most that ever was there at once.
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES_MAX if most == resource.RLIM_INFINITY else min(most, _FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
