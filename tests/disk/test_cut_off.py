"""A first start that was cut off while it took room can be repeated with any size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.disk.local import LocalDisk, data_path
from kvstore.disk.lost_index import LostIndex
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.errors import ConfigError
from kvstore.limits import KiB

FILE_BYTES = 256 * KiB


def opened(path: Path, files: int, file_bytes: int) -> LocalDisk:
    return LocalDisk.open(path, files * file_bytes, file_bytes, DISK_ALIGN, buffered=True)


def cut_off(path: Path, files: int, file_bytes: int) -> None:
    """As late as can be, with the layout yet to be written."""
    opened(path, files, file_bytes).close()
    (path / "layout.json").unlink()


@pytest.mark.parametrize("index_made", [False, True])
@pytest.mark.parametrize(("files", "file_bytes"), [(2, 64 * KiB), (1, FILE_BYTES), (4, 512 * KiB)])
def test_it_is_repeated_with_another_size_and_takes_no_more_than_that(
    tmp_path: Path, files: int, file_bytes: int, index_made: bool
) -> None:
    cut_off(tmp_path, 3, FILE_BYTES)
    if not index_made:
        (tmp_path / "index").rename(tmp_path / "elsewhere")
    disk = opened(tmp_path, files, file_bytes)
    assert (disk.files, disk.file_bytes, list(disk.scan())) == (files, file_bytes, [])
    disk.close()
    there = {one.name: one.stat().st_size for one in tmp_path.glob("blocks-*")}
    assert there == {f"blocks-0000{number}": file_bytes for number in range(files)}


@pytest.mark.parametrize("name", ["blocks-of-mine", "blocks-7", "blocks-000007"])
def test_files_that_no_node_names_so_are_left_alone(tmp_path: Path, name: str) -> None:
    mine = tmp_path / name
    mine.write_bytes(bytes(2 * FILE_BYTES))
    opened(tmp_path, 1, FILE_BYTES).close()
    assert mine.stat().st_size == 2 * FILE_BYTES


def an_index_with_entries(path: Path) -> None:
    disk = opened(path, 2, FILE_BYTES)
    disk.commit({b"key": b"1"}, ())
    disk.close()


def an_index_without_its_file(path: Path) -> None:
    os.truncate(path / "index" / "data.mdb", 0)


def a_damaged_index(path: Path) -> None:
    with (path / "index" / "data.mdb").open("r+b") as file:
        file.write(bytes(8 * DISK_ALIGN))


def an_index_that_is_yet_to_be_filled(path: Path) -> None:
    LostIndex(path).mark()


@pytest.mark.parametrize(
    "kept",
    [
        an_index_with_entries,
        an_index_without_its_file,
        a_damaged_index,
        an_index_that_is_yet_to_be_filled,
    ],
)
def test_where_blocks_may_have_been_stored_no_file_goes_though_the_layout_is_gone(
    tmp_path: Path, kept: Callable[[Path], None]
) -> None:
    cut_off(tmp_path, 2, FILE_BYTES)
    kept(tmp_path)
    (tmp_path / "layout.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="blocks-00000 is larger than the 65536 bytes of a file"):
        opened(tmp_path, 1, 64 * KiB)
    assert [data_path(tmp_path, number).stat().st_size for number in range(2)] == [FILE_BYTES] * 2
