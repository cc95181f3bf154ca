"""The seam's real form: a directory with preallocated files, their index, and a lock.

The directory is one process's at a time, on any filesystem with O_DIRECT. What was synced and
committed is there after a restart with the same layout, or with more files. Whatever is wrong with
the directory is said when it is opened: afterwards only the disk can fail.

    DIRECTORY/lock               the process that has it
    DIRECTORY/layout.json        how many files of which size, in which slabs, and the path's id
    DIRECTORY/blocks-00000 ...   the data
    DIRECTORY/index/             LMDB
    DIRECTORY/index.lost         there while the index is to be made anew
    DIRECTORY/index.damaged-0    what was moved out of its place
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

import lmdb

from kvstore.disk.cut_off import remove_cut_off
from kvstore.disk.files import DataFile, held_bytes, shut_others_out, sync_directory
from kvstore.disk.header import LAYOUT, Header
from kvstore.disk.ledger import Ledger, room_bytes
from kvstore.disk.lock import DirectoryLock
from kvstore.disk.lost_index import LostIndex, opened_index
from kvstore.disk.protocol import Disk
from kvstore.errors import ConfigError

_REBUILT_MAX = 65_536  # entries of one transaction: LMDB bounds the pages of each


class LocalDisk(Disk):
    """Made by `open`. `close` it, or its directory stays locked until the process ends."""

    def __init__(
        self,
        data: Sequence[DataFile],
        ledger: Ledger,
        lost: LostIndex,
        header: Header,
        resources: ExitStack,
    ) -> None:
        self.files = header.files
        self.file_bytes = header.file_bytes
        self.id = bytes.fromhex(header.id)
        self._data = data
        self._ledger = ledger
        self._lost, self.index_lost = lost, lost.marked
        self._resources = resources

    @classmethod
    def open(
        cls,
        path: Path,
        size_bytes: int,
        file_bytes: int,
        slab_bytes: int,
        *,
        buffered: bool = False,
    ) -> Self:
        """Make the directory or find it as it was left. Raises `ConfigError`, and takes no room.

        Files are of whole slabs. `buffered` goes through the system's page cache, for filesystems
        without O_DIRECT.
        """
        header = Header.of(path, size_bytes, file_bytes, slab_bytes)
        try:
            with ExitStack() as resources:
                data, ledger, header = _opened(path, header, buffered, resources)
                return cls(data, ledger, LostIndex(path), header, resources.pop_all())
        except (OSError, lmdb.Error) as error:
            full = os.strerror(errno.ENOSPC) in str(error)  # LMDB has its own errors
            cure = "free some room there" if full else "give a directory that the node can write"
            raise ConfigError(f"node.ssd {str(path)!r} cannot be used ({error}): {cure}") from error

    def read(self, file: int, offset: int, into: memoryview) -> None:
        self._data[file].read(offset, into)

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        self._data[file].write(offset, parts)

    def sync(self, file: int) -> None:
        self._data[file].sync()

    def commit(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        self._ledger.commit(puts, deletes)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        return self._ledger.scan()

    def rebuilt(self, entries: Mapping[bytes, bytes]) -> None:
        keys = iter(sorted(entries))
        while some := list(islice(keys, _REBUILT_MAX)):
            self._ledger.commit({key: entries[key] for key in some}, ())
        self._lost.unmark()
        self.index_lost = False

    def close(self) -> None:
        self._resources.close()


def data_path(path: Path, number: int) -> Path:
    """Where a data file lies in the directory."""
    return path / f"blocks-{number:05}"


def held_by_files(path: Path, file_bytes: int) -> int:
    """How many bytes of its filesystem the data files of a directory have, each as much as it is to
    have at most. Those that are there are looked at: a size far too large has millions."""
    return sum(min(held_bytes(one), file_bytes) for one in path.glob("blocks-*"))


def _opened(
    path: Path, header: Header, buffered: bool, resources: ExitStack
) -> tuple[list[DataFile], Ledger, Header]:
    """Everything in the directory, made where it was missing; `resources` closes it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    resources.callback(DirectoryLock(path).close)
    shut_others_out(path / LAYOUT)  # which is written anew only where it changes
    before = header.before(path)
    if before is None:
        remove_cut_off(path, header)
    else:
        header = replace(header, id=before.id)
    _check_room(path, header)
    data: list[DataFile] = []
    with ExitStack() as undo:
        for number in range(header.files):
            file = DataFile(data_path(path, number), header.file_bytes, buffered=buffered)
            undo.callback(file.discard)
            data.append(file)
        ledger = opened_index(path, header.files * header.file_bytes, known=before is not None)
        resources.callback(ledger.close)
        sync_directory(path)
        if header != before:
            header.write(path)
        undo.pop_all()
    for file in data:
        resources.callback(file.close)
    return data, ledger, header


def _check_room(path: Path, header: Header) -> None:
    """Refuse a size that the filesystem has no room for, before any of it is taken."""
    held = held_by_files(path, header.file_bytes)
    index_held = held_bytes(path / "index" / "data.mdb")

    def takes(files: int) -> int:
        size = files * header.file_bytes
        return size + max(0, room_bytes(size) - index_held)

    system, size = os.statvfs(path), header.files * header.file_bytes
    if not system.f_blocks:
        return  # the filesystem does not tell
    free, wanted = system.f_bavail * system.f_frsize, takes(header.files)
    if wanted > free + held:
        files = max(0, bisect_right(range(header.files), free + held, key=takes) - 1)
        fits = files * header.file_bytes
        raise ConfigError(
            f"node.ssd {str(path)!r}: {size} bytes and {wanted - size} for their index do not fit: "
            f"{free} bytes are free there and {held} are the node's already: free some, or give "
            f"at most {fits} bytes"
        )
