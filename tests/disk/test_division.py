"""Into which files a path goes: those it was made with, and of a new one nearly all of its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.config import NodeConfig, SsdConfig
from kvstore.disk import division
from kvstore.disk.division import file_bytes_of, files_kept
from kvstore.disk.header import Header
from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.errors import ConfigError
from kvstore.limits import SSD_FILES_MAX, GiB, KiB, MiB
from tests.disk.memory import aligned, page

SLAB = 32 * MiB


def made(path: Path, files: int, file_bytes: int, slab_bytes: int = SLAB) -> Path:
    Header(files, file_bytes, slab_bytes).write(path)
    return path


def divided(path: Path, size_bytes: int, slab_bytes: int = SLAB) -> tuple[int, int]:
    """How many files of which size."""
    file_bytes = file_bytes_of(SsdConfig(path, size_bytes), slab_bytes)
    return size_bytes // file_bytes, file_bytes


@pytest.mark.parametrize("size", [512 * MiB, GiB, 1536 * MiB, 2047 * MiB, 3 * GiB + 1000 * MiB])
@pytest.mark.parametrize("slab", [64 * KiB, 8 * MiB, SLAB, 48 * MiB])
def test_of_a_new_path_less_than_a_slab_of_each_file_is_left(
    tmp_path: Path, size: int, slab: int
) -> None:
    files, file_bytes = divided(tmp_path / "new", size, slab)
    assert file_bytes % slab == 0 and file_bytes <= GiB
    assert 0 <= size - files * file_bytes < files * slab


def test_whole_gibibytes_are_files_of_one_each(tmp_path: Path) -> None:
    assert divided(tmp_path, GiB) == (1, GiB)
    assert divided(tmp_path, 200 * GiB) == (200, GiB)
    assert divided(tmp_path, 64 * MiB) == (1, 64 * MiB)


def test_a_slab_larger_than_a_file_is_to_be_is_a_file(tmp_path: Path) -> None:
    assert divided(tmp_path, 5 * GiB, 2 * GiB) == (2, 2 * GiB)
    assert divided(tmp_path, 1100 * MiB, 900 * MiB) == (1, 900 * MiB)


def test_a_path_grows_in_files_of_the_size_that_it_was_made_with(tmp_path: Path) -> None:
    made(tmp_path, 1, 64 * MiB)
    assert divided(tmp_path, 128 * MiB) == (2, 64 * MiB)
    assert divided(tmp_path, 1536 * MiB) == (24, 64 * MiB)


def test_a_path_of_files_of_a_gibibyte_keeps_them_at_a_size_that_is_no_multiple(
    tmp_path: Path,
) -> None:
    made(tmp_path, 1, GiB, 0)
    assert divided(tmp_path, 1536 * MiB) == (1, GiB)


def test_a_path_that_would_grow_into_far_too_many_files_is_refused(tmp_path: Path) -> None:
    made(tmp_path, 1, 64 * KiB, 64 * KiB)
    most = SSD_FILES_MAX * 64 * KiB
    assert divided(tmp_path, most, 64 * KiB) == (SSD_FILES_MAX, 64 * KiB)
    told = rf"files of {64 * KiB} bytes.* give at most {most} bytes, or empty the directory"
    with pytest.raises(ConfigError, match=told):
        divided(tmp_path, most + 64 * KiB, 64 * KiB)
    many = made(tmp_path, SSD_FILES_MAX + 1, 64 * KiB, 64 * KiB)
    assert divided(many, most + 64 * KiB, 64 * KiB)[0] == SSD_FILES_MAX + 1, "it holds them already"


def test_the_files_of_all_paths_are_counted_as_they_are_divided(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    made(old, 1, 64 * MiB)
    ssd = (SsdConfig(old, 1536 * MiB), SsdConfig(tmp_path / "new", 1536 * MiB))
    assert files_kept(NodeConfig(tmp_path, ssd=ssd)) == 24 + 2


def test_a_path_that_is_a_file_is_for_its_opener_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert divided(tmp_path / "file", GiB) == (1, GiB)


def test_what_lies_on_a_path_of_before_is_there_at_its_size_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was rounded down to whole files; a new one of that size would have smaller ones."""
    monkeypatch.setattr(division, "_FILE_BYTES", 4 * MiB)
    size, before = 6 * MiB, LocalDisk.open(tmp_path, 6 * MiB, 4 * MiB, MiB, buffered=True)
    before.write(0, 3 * MiB, [page(7)])
    before.sync(0)
    before.commit({b"key": b"1"}, ())
    before.close()
    Header(1, 4 * MiB, 0, before.id.hex(), format=2).write(tmp_path)
    assert divided(tmp_path / "new", size, MiB) == (2, 3 * MiB)
    after = LocalDisk.open(tmp_path, size, divided(tmp_path, size, MiB)[1], MiB, buffered=True)
    into = aligned(DISK_ALIGN)
    after.read(0, 3 * MiB, into)
    assert bytes(into) == bytes(page(7)) and list(after.scan()) == [(b"key", b"1")]
    assert (after.files, after.file_bytes, after.id) == (1, 4 * MiB, before.id)
    after.close()
