"""A directory is used by one process at a time. The lock ends with its process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kvstore.errors import ConfigError

_NAME = "lock"


class DirectoryLock:
    """Held from here until `close`. Not by path but by open file, so a second one in the same
    process is refused like any other's."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            pid = os.pread(self._descriptor, 20, 0).strip()
            os.close(self._descriptor)
            holder = f"process {int(pid)}" if pid.isdigit() else "another process"
            raise ConfigError(
                f"node.ssd {str(path)!r} is in use by {holder}: stop it, or give another directory"
            ) from error
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        # The file stays: who removed it could remove one that another process has just locked.
        os.close(self._descriptor)
