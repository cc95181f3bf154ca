"""What a node takes hold of before it serves."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.config import NodeConfig, SsdConfig, in_units
from kvstore.disk.header import Header
from kvstore.disk.volumes import Volumes
from kvstore.errors import ConfigError
from kvstore.limits import MiB
from kvstore.node.start import locked, next_epoch, stable_node_id, volumes_of


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What became durable of a file, in order: its text, or that of its name in the directory."""
    seen: dict[str, list[str]] = {"node.epoch": [], "node.id": []}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        for name, texts in seen.items():
            file = tmp_path / name if path == tmp_path else path
            if file.name.startswith(name) and file.exists():
                texts.append(file.read_text())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return seen.__getitem__


def opened(directory: Path, slab_bytes: int) -> Volumes:
    ssd = (SsdConfig(directory / "ssd", 4 * MiB, buffered=True),)
    volumes = volumes_of(NodeConfig(directory, slab_bytes=slab_bytes, ssd=ssd))
    assert volumes is not None
    return volumes


def kept_by_a_start(directory: Path) -> list[Path]:
    """The small files that a node keeps from one start to the next."""
    config = NodeConfig(directory)
    with closing(locked(config)):
        stable_node_id(config)
        next_epoch(config)
        opened(directory, MiB).close()
    files = [directory / name for name in ("node.lock", "node.id", "node.epoch")]
    return [*files, directory / "ssd" / "layout.json"]


def test_an_epoch_is_on_the_disk_before_it_is_used(
    tmp_path: Path, synced: Callable[[str], list[str]]
) -> None:
    """Else a power loss has the next start give out the same one, and its generations, again."""
    for number in (1, 2):
        assert next_epoch(NodeConfig(directory=tmp_path)) == number
        assert synced("node.epoch") == [f"{number}\n"] * 2
        synced("node.epoch").clear()


@pytest.mark.parametrize("rotten", [b"", b"\xb5\n", b"-1\n", b"u\n", b"8388607\n", b"9" * 5_000])
def test_an_epoch_that_no_node_comes_to_is_told_by_its_file(tmp_path: Path, rotten: bytes) -> None:
    """Generations that begin with it would not fit into what is written of a block."""
    (tmp_path / "node.epoch").write_bytes(rotten)
    with pytest.raises(ConfigError, match=r"node.epoch holds no number of a start: delete it and"):
        next_epoch(NodeConfig(directory=tmp_path))
    assert (tmp_path / "node.epoch").read_bytes() == rotten


def test_an_id_is_on_the_disk_before_it_is_used(
    tmp_path: Path, synced: Callable[[str], list[str]]
) -> None:
    """Else a power loss leaves an empty file, with which no node starts."""
    made = stable_node_id(NodeConfig(directory=tmp_path))
    assert synced("node.id") == [f"{made}\n"] * 2


def test_what_a_node_keeps_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    config, before = NodeConfig(directory=tmp_path), os.umask(0)
    try:
        (tmp_path / "node.id.new").touch()  # by a start that was cut off
        with closing(locked(config)):
            stable_node_id(config)
            next_epoch(config)
            Header(files=1, file_bytes=MiB, slab_bytes=MiB).write(tmp_path)
    finally:
        os.umask(before)
    modes = {one.name: stat.filemode(one.stat().st_mode) for one in tmp_path.iterdir()}
    names = ("node.lock", "node.id", "node.epoch", "layout.json")
    assert modes == dict.fromkeys(names, "-rw-------")


def test_what_an_earlier_version_left_others_to_read_is_its_users_alone_from_the_next_start(
    tmp_path: Path,
) -> None:
    files = kept_by_a_start(tmp_path)
    for mode in (0o644, 0o666):
        for file in files:
            file.chmod(mode)
        assert kept_by_a_start(tmp_path) == files
        assert [stat.filemode(file.stat().st_mode) for file in files] == ["-rw-------"] * 4


def test_a_mode_that_cannot_be_changed_keeps_no_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(f"{path} is kept as it is")

    for file in kept_by_a_start(tmp_path):
        file.chmod(0o644)
    monkeypatch.setattr(Path, "chmod", refused)
    kept_by_a_start(tmp_path)


def test_modes_of_another_users_files_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, node_id, _, layout = kept_by_a_start(tmp_path)
    for file in (lock, node_id, layout):
        file.chmod(0o644)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    kept_by_a_start(tmp_path)
    for file in (lock, node_id, layout):
        assert stat.S_IMODE(file.stat().st_mode) == 0o644, file


def test_a_node_keeps_its_id_over_restarts(tmp_path: Path) -> None:
    config = NodeConfig(directory=tmp_path)
    first = stable_node_id(config)
    assert str(uuid.UUID(first)) == first == stable_node_id(config)
    config.id_file.write_text("no id\n")
    with pytest.raises(ConfigError, match=r"holds no node id: delete it"):
        stable_node_id(config)


def test_a_path_that_was_filled_in_other_slabs_is_refused_with_those(tmp_path: Path) -> None:
    """Slabs of the new size would be given out where blocks of the old one lie."""
    opened(tmp_path, 2 * MiB).close()
    for other in (MiB, 4 * MiB):
        with pytest.raises(ConfigError, match=rf"slabs of 2MiB, not {in_units(other)}: start"):
            opened(tmp_path, other)
    opened(tmp_path, 2 * MiB).close()


def test_a_path_of_before_keeps_the_slabs_that_it_is_started_with_now(tmp_path: Path) -> None:
    opened(tmp_path, 2 * MiB).close()
    layout = tmp_path / "ssd" / "layout.json"
    fields = json.loads(layout.read_text())
    del fields["slab_bytes"]
    layout.write_text(json.dumps({**fields, "format": 2}))
    volumes = opened(tmp_path, 2 * MiB)
    assert volumes.disks[0].id == bytes.fromhex(fields["id"])
    volumes.close()
    with pytest.raises(ConfigError, match="slabs of 2MiB, not 1MiB: start"):
        opened(tmp_path, MiB)
