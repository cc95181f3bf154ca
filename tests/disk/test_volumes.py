"""Several disks as one run of offsets, and what of it stays when the paths are named otherwise."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import pytest

from kvstore.disk.head import stamped
from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.disk.volumes import Volumes
from kvstore.errors import ConfigError
from kvstore.limits import KiB
from tests.disk.memory import aligned, page
from tests.simulation.sim_disk import SimDisk

SMALL, LARGE = 64 * KiB, 128 * KiB


def three() -> dict[str, SimDisk]:
    """Of different sizes, and of files of different sizes."""
    shapes = {"a": (2, SMALL), "b": (1, LARGE), "c": (3, SMALL)}
    dice = random.Random(1)
    return {name: SimDisk(*shape, dice) for name, shape in shapes.items()}


def read(volumes: Volumes, offset: int) -> bytes:
    into = aligned(DISK_ALIGN)
    volumes.read(offset, into)
    return bytes(into)


def test_files_and_offsets_are_one_run_in_the_order_of_the_paths() -> None:
    volumes = Volumes(three())
    assert volumes.names == ("a", "b", "c")
    assert volumes.files == 6 and volumes.capacity_bytes == 7 * SMALL
    spans = [volumes.span(file) for file in range(volumes.files)]
    assert spans[0][0] == 0 and spans[-1][1] == volumes.capacity_bytes
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for file, (begin, end) in enumerate(spans):
        for offset in (begin, begin + DISK_ALIGN, end - 1):
            assert volumes.file_of(offset) == file
            assert file in volumes.files_of(volumes.path_of(offset))
    assert [volumes.called(file) for file in (0, 2, 5)] == [
        *("file 0 of a", "file 0 of b", "file 2 of c")
    ]


def test_files_that_lie_side_by_side_have_one_span() -> None:
    volumes = Volumes(three())
    first, second, *_, last = [volumes.span(file) for file in range(volumes.files)]
    assert volumes.spans(range(volumes.files)) == [(0, volumes.capacity_bytes)]
    assert volumes.spans([5, 1, 0]) == [(first[0], second[1]), last]
    assert volumes.spans([]) == []


def test_every_page_is_its_own_and_lies_in_the_disk_that_has_the_offset() -> None:
    disks = three()
    volumes = Volumes(disks)
    pages = range(0, volumes.capacity_bytes, DISK_ALIGN)
    for number, offset in enumerate(pages):
        volumes.write(offset, [page(number % 251)])
    assert [read(volumes, offset)[0] for offset in pages] == [n % 251 for n in range(len(pages))]
    into = aligned(DISK_ALIGN)
    disks["b"].read(0, DISK_ALIGN, into)
    assert bytes(into) == read(volumes, 2 * SMALL + DISK_ALIGN)


def test_a_sync_is_of_one_file_and_a_commit_of_one_path() -> None:
    disks = three()
    volumes = Volumes(disks)
    for file in range(volumes.files):
        volumes.write(volumes.span(file)[0], [page(file + 1)])
    volumes.sync(3)
    volumes.commit(1, {b"key": b"value"}, ())
    assert [len(list(disk.scan())) for disk in disks.values()] == [0, 1, 0]
    assert list(volumes.scan()) == [(b"key", b"value", 1)]
    assert not disks["c"]._data[0].pending and disks["c"]._data[1].pending


def test_an_address_is_the_same_whatever_stands_before_its_path() -> None:
    disks = three()
    volumes = Volumes(disks)
    swapped = Volumes({name: disks[name] for name in ("c", "a", "b")})
    offset = 2 * SMALL + 5 * DISK_ALIGN  # in b
    assert volumes.address(offset) == swapped.address(5 * SMALL + 5 * DISK_ALIGN)
    assert volumes.address(offset) == (disks["b"].id, 5 * DISK_ALIGN)


def test_the_same_words_are_stamped_otherwise_on_another_path_and_at_another_place() -> None:
    volumes = Volumes(three())
    offsets = [0, DISK_ALIGN, 2 * SMALL, 4 * SMALL]
    heads = {stamped(7, b"r" * 16, volumes.address(offset)) for offset in offsets}
    assert len(heads) == len(offsets)
    assert stamped(7, b"r" * 16, volumes.address(0)) in heads


def test_a_path_and_a_copy_of_it_are_refused_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    LocalDisk.open(one, SMALL, SMALL, SMALL, buffered=True).close()
    shutil.copytree(one, two)
    disks = {
        path.name: LocalDisk.open(path, SMALL, SMALL, SMALL, buffered=True) for path in (one, two)
    }
    with pytest.raises(ConfigError, match=r"node\.ssd 'two' is a copy of 'one': give one"):
        Volumes(disks)
    for disk in disks.values():
        disk.close()
