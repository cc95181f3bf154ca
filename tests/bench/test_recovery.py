"""The recovery bench fills a real node, starts it again, and finds out if a block is missing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench import recovery
from bench.filling import Filling
from bench.guest import NotInstalled
from kvstore.limits import GiB

BLOCKS = 2_000


def quiet(_: str) -> None:
    pass


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory below which the bench works; the machine's page cache is let alone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(recovery, "DROP_CACHES", Path(name) / "not" / "there")
        yield Path(name)


def test_a_small_tier_is_filled_found_again_and_removed(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["recovery", "--json", "--runs", "2", "--blocks", str(BLOCKS)]
    command.main(asked)
    printed = capsys.readouterr()
    if not printed.out:
        pytest.skip(printed.err)  # no O_DIRECT below /var/tmp
    said = json.loads(printed.out.splitlines()[-1])
    assert (said["name"], said["unit"], said["sense"]) == ("recovery", "s", "at most")
    whole, ready = said["rows"]
    assert [one["counted"] for one in said["rows"]] == [True, False]
    assert whole["sizes"] == {"blocks": BLOCKS, "slot_bytes": 8192, "chain_blocks": 40}
    assert whole["limit"] == 5.0
    assert said["ratio"] == whole["ratio"] == pytest.approx(whole["value"] / 5.0, rel=1e-3)
    assert 0 < ready["value"] < whole["value"]
    assert whole["also"]["page_cache"].startswith("kept")
    assert whole["also"]["matched_chains"] == BLOCKS // 40
    assert whole["also"]["resident_bytes"] > 0
    assert not list(room.iterdir())


def test_a_block_that_is_not_there_again_ends_the_bench(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the test: all but one are stored, and nothing is left behind."""
    fill = recovery._fill

    def less(directory: Path, filling: Filling) -> None:
        fill(directory, Filling(filling.blocks - 1, filling.bytes))

    monkeypatch.setattr(recovery, "_fill", less)
    try:
        with pytest.raises(RuntimeError, match="reports 1999 blocks of 2000"):
            recovery.run(1, quiet, [BLOCKS])
    except NotInstalled as missing:
        pytest.skip(str(missing))
    assert not list(room.iterdir())


def test_a_disk_without_the_room_is_refused_before_anything_is_written(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * GiB))
    with pytest.raises(NotInstalled, match=r"500000 blocks need 4\.3 GiB, .* 4\.0 free"):
        recovery.run(1, quiet)
    assert not list(room.iterdir())
