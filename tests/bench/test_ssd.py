"""The SSD bench runs against a real fio at any size, and says how to get one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import ssd
from bench.guest import NotInstalled
from kvstore.limits import KiB, MiB

TINY = ssd.Sizes(file_bytes=2 * MiB, block_bytes=64 * KiB)


def quiet(_: str) -> None:
    pass


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_both_rows_count_name_fios_engine_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    try:
        report = ssd.run(2, quiet, TINY)
    except NotInstalled as missing:
        pytest.skip(str(missing))  # no O_DIRECT below TMPDIR, or fio without its engines
    assert [row.name for row in report.rows] == ["sequential write", "random read"]
    for row in report.rows:
        assert row.counted
        assert row.runs == 2
        assert row.value > 0
        assert row.limit is not None and row.limit > 0
        assert row.sizes["fio_engine"] in TINY.engines
        assert row.sizes["depth"] == ssd.DEPTH
    assert not list(tmp_path.iterdir())


def test_without_fio_the_bench_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotInstalled, match="apt-get install fio"):
        ssd.run(1, quiet, TINY)
