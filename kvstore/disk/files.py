"""One data file of the SSD tier: all its room is its own from the start, and no cache is between.

It is preallocated, so a write cannot run out of room, and opened with O_DIRECT, so bytes go
between the disk and the caller's memory without a copy and the node's memory is not spent on pages
that DRAM already holds. `sync` that failed once fails ever after.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from kvstore.disk.failure import explained
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.errors import ConfigError

_PARTS_MAX = os.sysconf("SC_IOV_MAX")
_SECTOR_BYTES = 512  # st_blocks counts in these, whatever the disk's own
_OWNED, _OTHERS = 0o600, 0o077  # the mode of what we make; whatever it lets others do


def held_bytes(path: Path) -> int:
    """How many bytes of its filesystem a file has: less than its size where it is sparse. None are
    counted of one in a directory that we cannot enter."""
    try:
        return path.stat().st_blocks * _SECTOR_BYTES
    except (FileNotFoundError, PermissionError):
        return 0


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, as `fsync` of the files does not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def owned(path: str, flags: int) -> int:
    """Opens a file for `open`; one that is made is its owner's alone."""
    return os.open(path, flags, _OWNED)


def shut_others_out(path: Path) -> None:
    """Our own file is ours alone from now on, whatever made it so that it was not. Where its mode
    cannot be changed it stays as it was: that is no reason not to start."""
    with suppress(OSError):
        about = path.stat()
        if about.st_uid == os.geteuid() and about.st_mode & _OTHERS:
            path.chmod(_OWNED)


def replace_file(path: Path, content: bytes) -> None:
    """What a small file says from now on, durably; whenever the power goes, that or what it said
    before. It is its owner's alone, whatever the umask: a path's layout says the path's secret."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a start that was cut off
    with open(new, "xb", opener=owned) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_directory(path.parent)


class DataFile:
    """Open for reading and writing. A file that is not there is made."""

    def __init__(self, path: Path, file_bytes: int, *, buffered: bool) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self._direct = not buffered
        self._failed = False
        self._syncing = threading.Lock()
        self.made = not path.exists()
        self._descriptor = -1
        try:
            self._preallocate()
            self._descriptor = self._open()
        except BaseException:
            self.discard()
            raise

    def _preallocate(self) -> None:
        # Not through the O_DIRECT descriptor: where the filesystem cannot preallocate, the C
        # library writes a byte to every block instead, which O_DIRECT refuses.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNED)
        try:
            if os.fstat(descriptor).st_size > self.file_bytes:
                raise ConfigError(
                    f"node.ssd {str(self.path.parent)!r}: {self.path.name} is larger than the "
                    f"{self.file_bytes} bytes of a file: give an empty directory"
                )
            if held_bytes(self.path) < self.file_bytes or self.made:
                os.posix_fallocate(descriptor, 0, self.file_bytes)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | (os.O_DIRECT if self._direct else 0))
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
            raise ConfigError(
                f"node.ssd {str(self.path.parent)!r}: the filesystem there has no O_DIRECT: "
                "give a directory on ext4 or XFS, or start with --ssd-buffered"
            ) from error

    def read(self, offset: int, into: memoryview) -> None:
        left = into.cast("B")
        self._check(offset, [left])
        with explained(f"reading {self.path} at {offset}"):
            while left.nbytes:
                done = os.preadv(self._descriptor, [left], offset)
                if not done:
                    raise OSError(f"the file ends at {offset}, {left.nbytes} bytes too early")
                offset, left = offset + done, left[done:]

    def write(self, offset: int, parts: Sequence[memoryview]) -> None:
        left = [part.cast("B") for part in parts if part.nbytes]
        self._check(offset, left)
        with explained(f"writing {self.path} at {offset}"):
            while left:
                done = os.pwritev(self._descriptor, left[:_PARTS_MAX], offset)
                if not done:
                    raise OSError(f"nothing was taken at {offset}")
                offset, left = offset + done, _after(left, done)

    def sync(self) -> None:
        # One at a time: the kernel tells of a failure once for each open file, so of two threads
        # in fdatasync one would hear of it and the other believe in its own bytes.
        with self._syncing:
            if self._failed:
                raise DiskError(f"syncing {self.path}: it failed before, retire the file")
            try:
                with explained(f"syncing {self.path}"):
                    os.fdatasync(self._descriptor)
            except DiskError:
                self._failed = True
                raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        """Close, and remove the file again if it was made here."""
        self.close()
        if self.made:
            self.path.unlink(missing_ok=True)

    def _check(self, offset: int, parts: Sequence[memoryview]) -> None:
        size = sum(part.nbytes for part in parts)
        assert 0 <= offset <= offset + size <= self.file_bytes, "outside the file"
        if not self._direct:
            return
        assert offset % DISK_ALIGN == 0, f"offset {offset} is no multiple of {DISK_ALIGN}"
        for part in parts:
            assert part.nbytes % DISK_ALIGN == 0, f"length {part.nbytes}: not of {DISK_ALIGN}s"
            assert not part.nbytes or _address(part) % DISK_ALIGN == 0, "memory is not aligned"


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).__array_interface__["data"][0])


def _after(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts when their first `done` bytes were written."""
    for index, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[index + 1 :]]
        done -= part.nbytes
    return []
