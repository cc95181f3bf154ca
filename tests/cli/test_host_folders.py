"""A path of the SSD tier is looked at as the node would that is to open it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.cli import host_folders
from kvstore.cli.host import look_at
from kvstore.cli.host_verdict import verdict
from kvstore.config import NodeConfig, SsdConfig
from kvstore.disk.header import Header
from kvstore.errors import ConfigError
from kvstore.limits import SSD_FILES_MAX, KiB, MiB
from kvstore.node.start import volumes_of


def configured(
    folder: Path, size_bytes: int = 64 * MiB, slab_bytes: int = 32 * MiB, listen: str = ""
) -> NodeConfig:
    return NodeConfig(
        folder / "node",
        dram_bytes=64 * MiB,
        slab_bytes=slab_bytes,
        ssd=(SsdConfig(folder / "ssd", size_bytes, buffered=True),),
        listen=listen or "127.0.0.1:0",
    )


def errors(config: NodeConfig) -> list[str]:
    return [one.text for one in verdict(config, look_at(config, None)) if one.error]


def refused_by_both(config: NodeConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        volumes_of(config)
    assert errors(config) == [f"--ssd {config.ssd[0].path}: {refused.value}"]


def made(config: NodeConfig) -> None:
    volumes = volumes_of(config)
    assert volumes is not None
    volumes.close()


def test_a_path_that_its_node_would_open_again_is_fine_and_one_that_grows_too(
    tmp_path: Path,
) -> None:
    made(configured(tmp_path))
    assert errors(configured(tmp_path)) == []
    assert errors(configured(tmp_path, 128 * MiB)) == []


@pytest.mark.parametrize(
    ("size_bytes", "slab_bytes", "says"),
    [
        (64 * MiB, 16 * MiB, "start with --slab 32MiB"),
        (32 * MiB, 32 * MiB, "holds no file of 64MiB"),
        (64 * MiB, 32 * MiB, "give at least 128MiB"),
    ],
)
def test_a_path_that_was_made_otherwise_is_refused_in_the_nodes_own_words(
    tmp_path: Path, size_bytes: int, slab_bytes: int, says: str
) -> None:
    made(configured(tmp_path))
    if "at least 128MiB" in says:
        made(configured(tmp_path, 128 * MiB))
    refused_by_both(configured(tmp_path, size_bytes, slab_bytes), says)


def unreadable(path: Path) -> None:
    (path / "layout.json").write_text("{")


def a_folder(path: Path) -> None:
    (path / "layout.json").mkdir()


def of_very_small_files(path: Path) -> None:
    fields = {"files": 1, "file_bytes": 64 * KiB, "id": Header(1, 1).id, "format": 2}
    (path / "layout.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (unreadable, "layout.json there cannot be read"),
        (a_folder, "Is a directory"),
        (of_very_small_files, f"give at most {SSD_FILES_MAX * 64 * KiB} bytes"),
    ],
)
def test_a_layout_that_is_of_no_use_is_said_of_its_path_and_hides_nothing_else(
    tmp_path: Path, layout: Callable[[Path], None], says: str
) -> None:
    (tmp_path / "ssd").mkdir()
    layout(tmp_path / "ssd")
    size = (SSD_FILES_MAX + 1) * 64 * KiB
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = configured(tmp_path, size, 64 * KiB, f"127.0.0.1:{taken.getsockname()[1]}")
        [port, path] = errors(config)
    assert "another process does" in port
    assert path.startswith(f"--ssd {tmp_path / 'ssd'}: ") and says in path


def test_of_a_disk_without_any_room_it_is_not_said_that_its_user_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(host_folders, "_direct", full)
    said = f"{tmp_path} takes no file (No space left on device): free some room"
    assert host_folders.refusal(tmp_path / "ssd") == said
