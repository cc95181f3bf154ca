"""Where loads came back short, for as long as KV may be computed over what is not there.

A rank's KV is computed from what all ranks of its engine hold, and only the rank whose load failed
knows of it. So the ranks of a host have one table, in a file in shared memory: a mark is in it
before the load is given back, and no rank has that step's KV before that.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..unsupported import Unsupported

# vLLM hears of a failed load when the step is over, and has then begun the next: both store what
# they computed. A step that takes longer it gives up (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).
LOST_SECONDS = 300
LOST_NS = LOST_SECONDS * 10**9

EVERYTHING = 0  # in place of a chunk's name: behind the beginning of every prompt
ROWS = 1_024
ROW = np.dtype([("name", np.uint64), ("until_ns", np.uint64)])
SHARED = Path("/dev/shm")


def name_of(chunk_hash: Any) -> int:
    """A chunk, whoever's: two that share a name are both doubted, and that is all."""
    digest = hashlib.blake2b(str(chunk_hash).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class Lost:
    """Chunks behind which loads came back short. Safe to use from several threads and ranks."""

    def __init__(self, engine: str, ranks: int, now_ns: Callable[[], int] = time.monotonic_ns):
        self._now_ns = now_ns  # of the host: all its processes have the same
        self._lock = threading.Lock()
        self._file = _file(engine) if ranks > 1 else -1
        self._rows = np.frombuffer(mmap.mmap(self._file, ROWS * ROW.itemsize), dtype=ROW)

    def mark(self, name: int) -> None:
        """Behind this chunk a load came back short, now."""
        until_ns = self._now_ns() + LOST_NS
        with self._lock:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                at = self._row_of(name)
                self._rows["name"][at] = name if at else EVERYTHING
                self._rows["until_ns"][at] = until_ns
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def marked(self) -> set[int]:
        """The chunks behind which KV is in doubt now."""
        return set(self._rows["name"][self._lives()].tolist())

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _row_of(self, name: int) -> int:
        """Its own, or else one that is nobody's now; the first is everything's."""
        if name == EVERYTHING:
            return 0
        mine, free = self._rows["name"][1:] == name, ~self._lives()[1:]
        some = np.flatnonzero(mine if mine.any() else free)
        return 1 + int(some[0]) if len(some) else 0

    def _lives(self) -> Any:
        now_ns, until_ns = self._now_ns(), self._rows["until_ns"]
        return (until_ns > now_ns) & (until_ns <= now_ns + LOST_NS)  # or of before the host's start


def _file(engine: str) -> int:
    digest = hashlib.blake2b(engine.encode(), digest_size=16).hexdigest()
    path = SHARED / f"moonpool-lmcache-{os.getuid()}-{digest}"
    try:
        found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(found).st_uid != os.getuid():
            os.close(found)
            raise PermissionError(f"{path} is another user's")
        os.ftruncate(found, ROWS * ROW.itemsize)  # what is in it stays
    except OSError as error:
        raise Unsupported(
            f"the engine's ranks cannot tell one another of loads that failed: {error}; a file of "
            f"{ROWS * ROW.itemsize >> 10} KiB in {SHARED} is wanted, which this user may write"
        ) from error
    return found
