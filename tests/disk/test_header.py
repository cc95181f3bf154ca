"""What a path says of how it was made, and which start is refused by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.disk.header import Header
from kvstore.errors import ConfigError
from kvstore.limits import MiB

MADE = Header(files=3, file_bytes=12 * MiB, slab_bytes=4 * MiB)


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert Header.read(tmp_path) is None
    MADE.write(tmp_path)
    assert Header.read(tmp_path) == MADE


@pytest.mark.parametrize("slab_bytes", [2 * MiB, 6 * MiB, 12 * MiB])
def test_another_slab_is_refused_with_the_one_that_is_right(
    tmp_path: Path, slab_bytes: int
) -> None:
    """Its slabs would be given out where blocks of the others lie, and those be lost."""
    right = rf"slabs of 4MiB, not {slab_bytes // MiB}MiB: start with --slab 4MiB, or empty"
    with pytest.raises(ConfigError, match=right):
        Header(3, 12 * MiB, slab_bytes).check_follows(MADE, tmp_path)
    Header(4, 12 * MiB, 4 * MiB).check_follows(MADE, tmp_path)


def test_a_header_of_before_says_nothing_of_slabs_and_takes_those_that_its_files_are_of(
    tmp_path: Path,
) -> None:
    fields = {"files": 3, "file_bytes": 12 * MiB, "id": MADE.id, "format": 2}
    (tmp_path / "layout.json").write_text(json.dumps(fields))
    before = Header.read(tmp_path)
    assert before is not None and before.slab_bytes == 0
    for slab_bytes in (2 * MiB, 6 * MiB):
        Header(3, 12 * MiB, slab_bytes).check_follows(before, tmp_path)
    with pytest.raises(ConfigError, match="are no whole slabs of 8MiB: start with the --slab"):
        Header(3, 12 * MiB, 8 * MiB).check_follows(before, tmp_path)


@pytest.mark.parametrize("slab_bytes", [-1, True, "8MiB", None])
def test_slabs_that_are_no_number_are_refused(tmp_path: Path, slab_bytes: object) -> None:
    fields = {"files": 3, "file_bytes": 12 * MiB, "slab_bytes": slab_bytes, "id": MADE.id}
    (tmp_path / "layout.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="whole numbers"):
        Header.read(tmp_path)
