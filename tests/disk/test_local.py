"""The real disk: what it refuses to start with, what a restart finds, and whom it locks out."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvstore.disk import local
from kvstore.disk.local import LocalDisk, data_path
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.errors import ConfigError
from kvstore.limits import GiB, KiB, MiB
from tests.disk.memory import aligned, page

FILE_BYTES = 256 * KiB
Mounted = Callable[..., Path]


def opened(path: Path, files: int = 2, file_bytes: int = FILE_BYTES) -> LocalDisk:
    return LocalDisk.open(path, files * file_bytes, file_bytes, DISK_ALIGN, buffered=True)


def refused(path: Path, match: str, **given: Any) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        opened(path, **given)
    assert "node.ssd" in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_take_all_their_room_at_once(tmp_path: Path) -> None:
    opened(tmp_path / "ssd").close()
    for number in range(2):
        about = data_path(tmp_path / "ssd", number).stat()
        assert about.st_size == FILE_BYTES
        assert about.st_blocks * 512 >= FILE_BYTES


def test_holes_that_a_copy_made_are_filled_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    file = data_path(tmp_path, 1)
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(FILE_BYTES)
    opened(tmp_path).close()
    assert file.stat().st_blocks * 512 >= FILE_BYTES


def test_a_size_between_two_numbers_of_files_is_rounded_down(tmp_path: Path) -> None:
    disk = LocalDisk.open(tmp_path, 3 * FILE_BYTES - 1, FILE_BYTES, FILE_BYTES, buffered=True)
    assert disk.files == 2
    disk.close()


def test_a_size_smaller_than_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.ssd .* holds no file of 256KiB: give at least"):
        LocalDisk.open(tmp_path, FILE_BYTES - 1, FILE_BYTES, FILE_BYTES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file_bytes", [0, 100, 4097])
def test_files_of_broken_pages_are_refused(tmp_path: Path, file_bytes: int) -> None:
    refused(tmp_path, "give a multiple of 4096", file_bytes=file_bytes)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    refused(tmp_path / "file", "is not a directory")
    refused(tmp_path / "file" / "below", "Not a directory")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_path_that_cannot_be_made_is_refused() -> None:
    refused(Path("/proc/moonpool"), "cannot be used")


def test_a_path_that_cannot_be_written_is_refused(mounted: Mounted) -> None:
    refused(mounted("tmpfs", "ro"), "Read-only file system.*a directory that the node can write")


def test_a_path_without_room_is_not_called_one_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = os.strerror(errno.ENOSPC)
    for error in (OSError(errno.ENOSPC, said), lmdb.DiskError(f"mdb_env_open: {said}")):

        def full(*_: object, why: Exception = error) -> None:
            raise why

        with monkeypatch.context() as patched:
            patched.setattr(local, "_opened", full)
            refused(tmp_path, "No space left on device.*: free some room there$")


def test_a_filesystem_without_direct_io_is_refused_unless_buffered(mounted: Mounted) -> None:
    path = mounted("ramfs")
    try:
        os.close(os.open(path / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pass
    else:
        pytest.skip("ramfs has O_DIRECT on this kernel")
    with pytest.raises(
        ConfigError, match=r"no O_DIRECT: .* or start with --ssd-buffered"
    ) as caught:
        LocalDisk.open(path, FILE_BYTES, FILE_BYTES, FILE_BYTES)
    assert str(path) in str(caught.value)
    assert not data_path(path, 0).exists()
    opened(path).close()


def test_a_size_beyond_what_is_free_is_refused_before_any_is_taken(tmp_path: Path) -> None:
    refused(tmp_path, r"bytes are free there .* give at most \d+", file_bytes=1024 * GiB)
    assert not data_path(tmp_path, 0).exists()


def test_a_size_that_is_far_too_large_is_told_what_would_fit(mounted: Mounted) -> None:
    path = mounted("tmpfs", "size=16m")
    refused(path, f"give at most {14 * MiB}", files=1 << 20, file_bytes=MiB)
    assert opened(path, files=14, file_bytes=MiB).files == 14


def test_of_a_size_that_no_disk_has_no_file_is_looked_for_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    opened(tmp_path, files=2).close()

    def held(one: Path) -> int:
        looked.append(one)
        return 0

    monkeypatch.setattr(local, "held_bytes", held)
    refused(tmp_path, "do not fit", files=1 << 40)
    assert len(looked) == 3, "two files, and the index"


def test_what_the_files_hold_already_counts_as_free_for_them(mounted: Mounted) -> None:
    path = mounted("tmpfs", "size=16m")
    opened(path, files=12, file_bytes=MiB).close()
    opened(path, files=12, file_bytes=MiB).close()
    refused(path, f"give at most {14 * MiB}", files=16, file_bytes=MiB)
    grown = opened(path, files=14, file_bytes=MiB)
    assert grown.files == 14
    grown.close()


def test_a_start_that_found_no_room_can_be_repeated_with_less(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room was there when it was counted, and another took it."""
    path = mounted("tmpfs", "size=16m")
    with monkeypatch.context() as patched:
        patched.setattr("kvstore.disk.local._check_room", lambda *_: None)
        refused(path, "No space left", files=20, file_bytes=MiB)
    assert not list(path.glob("blocks-*"))
    opened(path, files=8, file_bytes=MiB).close()


def test_a_restart_finds_the_data_and_the_index(tmp_path: Path) -> None:
    before = opened(tmp_path)
    before.write(1, DISK_ALIGN, [page(7)])
    before.sync(1)
    before.commit({b"key": b"1"}, ())
    before.close()
    after, into = opened(tmp_path, files=3), aligned(DISK_ALIGN)
    assert after.id == before.id
    after.read(1, DISK_ALIGN, into)
    assert bytes(into) == bytes(page(7))
    assert list(after.scan()) == [(b"key", b"1")]
    assert after.files == 3
    after.close()


def test_fewer_files_and_files_of_another_size_are_refused(tmp_path: Path) -> None:
    opened(tmp_path, files=4).close()
    refused(tmp_path, "holds 4 files of 256KiB, .* give at least 1MiB", files=2)
    refused(tmp_path, "was made with files of 256KiB, not 512KiB", file_bytes=512 * KiB)
    opened(tmp_path, files=4).close()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"files": 2}', "cannot be read"),
        (b'{"files": true, "file_bytes": 1}', "whole numbers"),
        (b'{"files": 1, "file_bytes": 1}', "its id is to be 64 hex digits"),
        (b'{"files": 1, "file_bytes": 1, "id": "ab"}', "its id is to be 64 hex digits"),
        (b"[1, 2]", "cannot be read"),
        (
            json.dumps({"files": 2, "file_bytes": 9, "format": 1}).encode(),
            "has format 1, this .* reads 3",
        ),
    ],
)
def test_a_layout_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes, match: str) -> None:
    opened(tmp_path).close()
    (tmp_path / "layout.json").write_bytes(text)
    refused(tmp_path, match)


def test_a_file_that_was_cut_short_is_whole_again_at_the_next_start(tmp_path: Path) -> None:
    opened(tmp_path).close()
    os.truncate(data_path(tmp_path, 1), DISK_ALIGN)
    disk = opened(tmp_path)
    disk.read(1, FILE_BYTES - DISK_ALIGN, aligned(DISK_ALIGN))
    disk.close()
