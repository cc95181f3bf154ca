"""How the real disk reads and writes: aligned, on past short calls, its errors told."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DISK_ALIGN, DiskError, DiskFull, DiskReadOnly
from kvstore.errors import ConfigError
from kvstore.limits import KiB
from tests.disk.memory import aligned, page
from tests.nodes import eventually

FILE_BYTES = 256 * KiB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    disk = LocalDisk.open(tmp_path / "ssd", 2 * FILE_BYTES, FILE_BYTES, FILE_BYTES, buffered=True)
    yield disk
    disk.close()


@pytest.mark.skipif(not __debug__, reason="asserts are off")
def test_direct_io_wants_offset_length_and_address_aligned(tmp_path: Path) -> None:
    try:
        disk = LocalDisk.open(tmp_path, FILE_BYTES, FILE_BYTES, FILE_BYTES)
    except ConfigError as error:
        pytest.skip(str(error))
    two = aligned(2 * DISK_ALIGN)
    for offset, part in [(512, page(1)), (0, two[:512]), (0, two[512 : 512 + DISK_ALIGN])]:
        with pytest.raises(AssertionError):
            disk.write(0, offset, [part])
        with pytest.raises(AssertionError):
            disk.read(0, offset, part)
    assert fcntl.fcntl(disk._data[0]._descriptor, fcntl.F_GETFL) & os.O_DIRECT
    disk.close()


def test_short_writes_and_reads_are_gone_on_with(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, preadv = os.pwritev, os.preadv
    sizes: Iterator[int] = iter([1, 4095, 4096, 6000, *[8192] * 10] * 2)
    monkeypatch.setattr(os, "pwritev", lambda f, p, o: pwritev(f, [b"".join(p)[: next(sizes)]], o))
    monkeypatch.setattr(os, "preadv", lambda f, p, o: preadv(f, [p[0][: next(sizes)]], o))
    disk.write(0, 0, [page(number) for number in range(10)])
    into = aligned(10 * DISK_ALIGN)
    disk.read(0, 0, into)
    assert bytes(into) == b"".join(page(number) for number in range(10))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, DiskReadOnly),
        (errno.EIO, DiskError),
    ],
)
def test_what_the_system_answers_becomes_the_seams_error_and_names_the_file(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[DiskError]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    for name in ("pwritev", "preadv", "fdatasync"):
        monkeypatch.setattr(os, name, fail)
    calls: list[Callable[[], None]] = [
        lambda: disk.write(0, 0, [page(1)]),
        lambda: disk.read(0, 0, aligned(DISK_ALIGN)),
        lambda: disk.sync(0),
    ]
    for call in calls:
        with pytest.raises(DiskError, match=f"blocks-00000.*{os.strerror(code)}") as caught:
            call()
        assert type(caught.value) is kind


def test_memory_that_is_not_aligned_is_fine_where_the_disk_is_buffered(disk: LocalDisk) -> None:
    memory, into = aligned(8 * KiB)[3:1003], aligned(1000)
    memory[:] = bytes([5]) * 1000
    disk.write(0, 17, [memory])
    disk.read(0, 17, into)
    assert bytes(into) == bytes([5]) * 1000


class Line:
    """A lock that knows how many have asked for it."""

    def __init__(self) -> None:
        self.asked, self._lock, self._counting = 0, threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_of_syncs_at_once_none_passes_after_the_one_that_was_told_of_the_failure(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells one caller only, as here: to the others their bytes seem to be safe."""
    failures, line = iter([True]), Line()

    def fdatasync(_: int) -> None:
        if next(failures, False):
            eventually(lambda: line.asked == 4)
            raise OSError(errno.EIO, "told once")

    def passes(_: int) -> bool:
        try:
            disk.sync(0)
        except DiskError:
            return False
        return True

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(disk._data[0], "_syncing", line)
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(passes, range(4)))
    disk.sync(1)


def test_more_parts_than_the_system_takes_at_once_are_written_in_several_calls(
    disk: LocalDisk,
) -> None:
    parts, into = 3 * os.sysconf("SC_IOV_MAX") + 1, aligned(64 * KiB)
    disk.write(0, 0, [memoryview(b"ab")] * parts)
    disk.read(0, 0, into)
    assert bytes(into[: 2 * parts + 2]) == b"ab" * parts + bytes(2)


def test_an_index_that_takes_nothing_is_told_of_where_its_filesystem_answers_nothing_either(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def begin(self, *, write: bool) -> None:
            error = lmdb.Error("mdb_txn_begin: Input/output error")
            error.code = errno.EIO
            raise error

    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "statvfs", fail)
    with monkeypatch.context() as failing:
        failing.setattr(disk._ledger, "_environment", Failing())
        with pytest.raises(DiskError, match=r"committing to .*: Input/output error") as caught:
            disk.commit({b"key": b"value"}, ())
    assert not isinstance(caught.value, DiskFull)
