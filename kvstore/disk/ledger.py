"""The index beside the data files: an LMDB environment that is synced before a commit returns.

A commit is one LMDB transaction, so it is there whole or not at all, whenever the power goes. A
scan reads as of its start, whatever is committed meanwhile, and holds up nobody. Room for the index
is taken from the filesystem when it is made, so a full disk is met late or never.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lmdb

from kvstore.disk.failure import failure
from kvstore.disk.files import sync_directory
from kvstore.disk.index_check import damage
from kvstore.disk.protocol import DiskFull
from kvstore.failpoint import failpoint
from kvstore.limits import GiB, MiB

_MAP_BYTES_MIN = 1 * GiB  # of address space, which costs nothing until it is used
_MAP_SHARE = 16  # of the data: more than the index of blocks of 8 KiB
_ROOM_BYTES_MIN = 1 * MiB
_ROOM_SHARE = 256  # of the data: the index of blocks of 128 KiB
_FULL_BYTES = 1 * MiB  # a filesystem with less than this free counts as full
_READERS_MAX = 64  # scans at once
# LMDB would make the directory with the mode of its files, and then root alone can enter it.
_OWNER_READS, _OWNER_ENTERS = 0o600, 0o700


def room_bytes(size_bytes: int) -> int:
    """What the index takes of the filesystem from its start, beside so many bytes of data."""
    return _ROOM_BYTES_MIN + size_bytes // _ROOM_SHARE


def let_owner_in(path: Path) -> None:
    """Our own directory can be entered by us from now on, whatever made it so that it could not."""
    about = path.stat()
    if about.st_uid == os.geteuid() and about.st_mode & _OWNER_ENTERS != _OWNER_ENTERS:
        path.chmod(_OWNER_ENTERS)


class IndexDamaged(Exception):
    """What is there is no index that could be read; the message says why."""


class Ledger:
    """Keys and values in the order of keys."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._map_bytes = max(_MAP_BYTES_MIN, size_bytes // _MAP_SHARE)
        if not path.exists():
            self._make()
        elif why := damage(path, self._map_bytes):
            raise IndexDamaged(why)
        self._environment = self._open(path)
        try:
            self._environment.reader_check()
            self._take_room(room_bytes(size_bytes))
        except BaseException:
            self._environment.close()
            raise

    def commit(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        with self._explained("committing to"), self._environment.begin(write=True) as transaction:
            for key in deletes:
                transaction.delete(key)
            if deletes:
                failpoint("commit.inside")
            for key, value in puts.items():
                transaction.put(key, value)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        with self._explained("reading"):
            transaction = self._environment.begin(buffers=False)
        return self._rows(transaction)

    @property
    def empty(self) -> bool:
        return not self._environment.stat()["entries"]

    def close(self) -> None:
        self._environment.close()

    def _rows(self, transaction: lmdb.Transaction[bytes]) -> Iterator[tuple[bytes, bytes]]:
        with self._explained("reading"), transaction:
            yield from transaction.cursor()

    def _make(self) -> None:
        # Under another name until it is synced: LMDB refuses a file whose first pages are zeros,
        # and that is what a power cut may leave of a new one.
        new = self.path.with_name(self.path.name + ".new")
        if new.exists():
            let_owner_in(new)
            shutil.rmtree(new)
        new.mkdir(mode=_OWNER_ENTERS)
        environment = self._open(new)
        environment.sync(True)
        environment.close()
        sync_directory(new)
        new.rename(self.path)
        sync_directory(self.path.parent)

    def _open(self, path: Path) -> lmdb.Environment:
        return lmdb.open(
            os.fspath(path),
            map_size=self._map_bytes,
            max_readers=_READERS_MAX,
            mode=_OWNER_READS,
            sync=True,
            metasync=True,
            writemap=False,  # a full disk would be a SIGBUS
        )

    def _take_room(self, size: int) -> None:
        descriptor = os.open(self.path / "data.mdb", os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < size:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError as error:
            raise DiskFull(f"{doing} {self.path}: all {self._map_bytes} bytes are used") from error
        except lmdb.Error as error:
            code, said = error.code, str(error)
            if code == errno.EIO and _is_full(self.path):
                code = errno.ENOSPC  # LMDB calls a write that was cut short an EIO
                said = os.strerror(code)
            raise failure(f"{doing} {self.path}", code, said) from error


def _is_full(path: Path) -> bool:
    try:
        system = os.statvfs(path)
    except OSError:
        return False  # a disk that does not even say so has failed, whatever else it is
    return system.f_bavail * system.f_frsize < _FULL_BYTES
