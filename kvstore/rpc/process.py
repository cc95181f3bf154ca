"""What callers can make a process that serves hold, beside the messages that it admits."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

from kvstore.errors import ConfigError
from kvstore.limits import KiB

_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 64 * KiB
_FILES_MAX = 4_096  # a connection costs gRPC some 20 KiB
_FILES_LEAST = 256  # of those: for a few callers, and what the process itself has open


def bound_the_process(kept: int = 0) -> None:
    """Call it once, before the process serves, and before it opens the files that it keeps."""
    # Each message's buffer is mapped by itself and leaves the process when it is freed. Else glibc
    # keeps, in each of gRPC's threads, room for the most that ever was there at once.
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    bound_files(kept)


def bound_files(kept: int = 0) -> None:
    """How many files may be open at once, whatever a shell or service gave to begin with."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_bound(kept, most), most))


def files_bound(kept: int, most: int) -> int:
    """Of a process that keeps so many open for as long as it runs, beside those of connections, and
    that may raise its limit so far. Raises `ConfigError` where that is too little."""
    wanted = kept + _FILES_MAX
    if most == resource.RLIM_INFINITY:
        return wanted
    if kept and most < kept + _FILES_LEAST:
        raise ConfigError(
            f"--ssd keeps {kept} files open, and a process may open {most} here: raise that to "
            f"{wanted} (LimitNOFILE=, `ulimit -Hn`), or give smaller sizes"
        )
    return min(most, wanted)
