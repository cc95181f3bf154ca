"""What the system says of a disk, told in the seam's words: full, read-only, or failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.disk.protocol import DiskError, DiskFull, DiskReadOnly

_KINDS: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EROFS: DiskReadOnly,
}


def failure(doing: str, code: int, said: str) -> DiskError:
    """The error to raise for what the system answered while `doing` something to a path."""
    return _KINDS.get(code, DiskError)(f"{doing}: {said}")


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Raise what the system refuses inside as the seam's error; `doing` names the path."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        raise failure(doing, code, os.strerror(code) if code else str(error)) from error
