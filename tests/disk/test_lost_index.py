"""An index that is gone or damaged is moved aside and marked until it has been made anew."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.disk import index_check
from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.errors import ConfigError
from kvstore.limits import KiB

FILE_BYTES = 256 * KiB
ENTRIES = 500
BRANCH, PAGE_HEAD_BYTES = 1, 16  # of LMDB's pages


def opened(path: Path) -> LocalDisk:
    return LocalDisk.open(path, FILE_BYTES, FILE_BYTES, FILE_BYTES, buffered=True)


def filled(path: Path) -> dict[bytes, bytes]:
    dice = random.Random(1)
    entries = {dice.randbytes(32): dice.randbytes(160) for _ in range(ENTRIES)}
    disk = opened(path)
    assert not disk.index_lost
    disk.commit(entries, ())
    disk.close()
    return entries


def remove(index: Path) -> None:
    shutil.rmtree(index)


def remove_file(index: Path) -> None:
    (index / "data.mdb").unlink()


def empty_file(index: Path) -> None:
    os.truncate(index / "data.mdb", 0)


def cut(index: Path) -> None:
    os.truncate(index / "data.mdb", 8 * DISK_ALIGN)


def zero(index: Path) -> None:
    size = (index / "data.mdb").stat().st_size
    (index / "data.mdb").write_bytes(bytes(size))


def zero_behind_the_beginning(index: Path) -> None:
    """LMDB ends the process that reads one of these."""
    with (index / "data.mdb").open("r+b") as file:
        file.seek(2 * DISK_ALIGN)
        file.write(bytes(200 * DISK_ALIGN))


def garble(index: Path) -> None:
    with (index / "data.mdb").open("r+b") as file:
        file.seek(2 * DISK_ALIGN)
        file.write(random.Random(2).randbytes(30 * DISK_ALIGN))


def name_one_page_twice(index: Path) -> None:
    """Its tree then has some keys again and again, and others never."""
    with (index / "data.mdb").open("r+b") as file:
        pages = file.read()
        for at in range(0, len(pages), DISK_ALIGN):
            number, _, flags, lower = struct.unpack_from("<QHHH", pages, at)
            if number != at // DISK_ALIGN or flags != BRANCH:
                continue
            nodes = struct.unpack_from(f"<{(lower - PAGE_HEAD_BYTES) // 2}H", pages, at + 16)
            for node in nodes:
                file.seek(at + node)
                file.write(pages[at + nodes[0] : at + nodes[0] + 6])  # the page that it leads to


HARMS = [remove, remove_file, empty_file, cut, zero, zero_behind_the_beginning, garble]
HARMS += [name_one_page_twice]


@pytest.mark.parametrize("harm", HARMS)
def test_whatever_befell_it_the_start_goes_on_and_asks_for_what_was_in_it(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    entries = filled(tmp_path)
    harm(tmp_path / "index")
    disk = opened(tmp_path)
    assert disk.index_lost and not list(disk.scan())
    assert "is made anew from the heads" in caplog.text and str(tmp_path) in caplog.text
    aside = tmp_path / "index.damaged-0"
    assert aside.exists() == (harm is not remove) == ("moved to" in caplog.text)
    disk.rebuilt(entries)
    assert not disk.index_lost
    disk.close()
    disk = opened(tmp_path)
    assert not disk.index_lost
    assert list(disk.scan()) == sorted(entries.items())
    disk.close()


def test_a_start_that_was_cut_off_before_the_index_was_filled_is_repeated(tmp_path: Path) -> None:
    filled(tmp_path)
    remove(tmp_path / "index")
    for _ in range(2):
        disk = opened(tmp_path)
        assert disk.index_lost
        disk.close()
    disk = opened(tmp_path)
    disk.rebuilt({})
    disk.close()
    disk = opened(tmp_path)
    assert not disk.index_lost, "that nothing was found is an answer too"
    disk.close()


def test_a_second_damaged_index_is_kept_beside_the_first(tmp_path: Path) -> None:
    filled(tmp_path)
    for number in range(2):
        zero(tmp_path / "index")
        opened(tmp_path).close()
        assert (tmp_path / f"index.damaged-{number}").is_dir()


def test_an_index_that_cannot_be_mapped_for_now_is_left_where_it_is(tmp_path: Path) -> None:
    entries = filled(tmp_path)
    with pytest.MonkeyPatch.context() as little_memory:
        little_memory.setattr("kvstore.disk.ledger._MAP_BYTES_MIN", 1 << 56)
        with pytest.raises(ConfigError, match="Cannot allocate memory"):
            opened(tmp_path)
    disk = opened(tmp_path)
    assert not disk.index_lost and dict(disk.scan()) == entries
    disk.close()


def test_an_index_that_a_slow_disk_does_not_read_in_time_is_left_where_it_is(
    tmp_path: Path,
) -> None:
    entries = filled(tmp_path)
    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(index_check, "CHECK_SECONDS", 1e-3)
        with pytest.raises(ConfigError, match="was not done within"):
            opened(tmp_path)
    disk = opened(tmp_path)
    assert not disk.index_lost and dict(disk.scan()) == entries
    disk.close()


def test_a_new_directory_has_lost_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        disk = opened(tmp_path / "ssd")
        assert not disk.index_lost
        disk.close()
