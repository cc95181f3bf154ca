"""A wrong setting is refused where it is read, by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.config import (
    ConductorConfig,
    NodeConfig,
    Stands,
    parse_bytes,
    state_dir,
)
from kvstore.errors import ConfigError
from kvstore.limits import GiB, KiB, MiB
from tests.homeless import homeless

__all__ = ["homeless"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("64b", 64),
        ("4KiB", 4 * KiB),
        (" 8 gib ", 8 * GiB),
        ("1.5MiB", MiB + MiB // 2),
        ("2TiB", 2048 * GiB),
        ("9007199254740993", 2**53 + 1),  # no float holds it
    ],
)
def test_sizes_are_read_to_the_byte(text: str, size: int) -> None:
    assert parse_bytes("node.dram", text) == size


def test_an_absurd_size_is_a_number_for_its_reader_to_refuse() -> None:
    assert parse_bytes("node.dram", "9" * 400 + "TiB") > 2**64


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GB", "8 gigs", "1e9", "1.MiB", "0x10", "nan"])
def test_what_is_no_size_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.dram = .*write a size like 512MiB"):
        parse_bytes("node.dram", text)


def test_the_state_directory_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOONPOOL_DIR", str(tmp_path))
    assert state_dir() == tmp_path
    monkeypatch.setenv("MOONPOOL_DIR", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == tmp_path / "moonpool"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert state_dir() == Path.home() / ".local" / "state" / "moonpool"


def test_where_no_home_is_known_the_state_directory_is_to_be_named(homeless: None) -> None:
    with pytest.raises(ConfigError, match=r"no home .*: give --dir PATH or set MOONPOOL_DIR"):
        state_dir()


def test_a_node_config_names_its_files_in_its_directory(tmp_path: Path) -> None:
    config = NodeConfig(tmp_path)
    files = {config.shm_socket, config.lock_file, config.id_file}
    assert len(files) == 3 and {file.parent for file in files} == {tmp_path}


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"slab_bytes": 60 * KiB}, "node.slab"),
        ({"slab_bytes": MiB + 1}, "node.slab"),
        ({"dram_bytes": MiB, "slab_bytes": 2 * MiB}, "--dram 1MiB: write at least --slab, 2MiB"),
        ({"lease_ms": 199}, "node.lease_ms"),
        ({"lease_ms": 60_001}, "node.lease_ms"),
        ({"numa": "on"}, "node.numa = 'on'"),
        ({"data_port": 70_000}, "node.data_port = 70000"),
        ({"data_port": -1}, "node.data_port = -1"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        NodeConfig(tmp_path, **setting)  # type: ignore[arg-type]


def test_a_directory_too_deep_for_a_socket_is_refused_before_the_bind() -> None:
    name = NodeConfig(Path("/")).shm_socket.name
    NodeConfig(Path("/" + "d" * (107 - len(name) - 2)))
    with pytest.raises(ConfigError, match=r"node\.dir = .*too long for a Unix socket"):
        NodeConfig(Path("/" + "d" * (107 - len(name) - 1)))
    with pytest.raises(ConfigError, match=r"node\.dir"):
        NodeConfig(Path("/" + "é" * 50))


@pytest.mark.parametrize("name", ["ttft_ms", "tpot_ms"])
def test_a_target_that_nothing_can_keep_is_refused(tmp_path: Path, name: str) -> None:
    for value in (0, -1, 1 << 40):
        with pytest.raises(ConfigError, match=rf"conductor\.{name} = {value}: write 1 to"):
            ConductorConfig(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"rack": "a\nb"}, "rack = 'a\\nb': at most 256 bytes of printable text"),
        ({"rack": "r" * 257}, "rack = "),
        ({"rack": "r", "cross_rack_bytes_per_second": 1.0}, "second = 1.0: from 1000 to 1e"),
        ({"cross_rack_bytes_per_second": 1e9}, "second: say too which `rack`"),
        ({"nvlink_domain": "d"}, "nvlink_domain, nvlink_bytes_per_second: say both"),
        ({"nvlink_bytes_per_second": 7e11}, "nvlink_domain, nvlink_bytes_per_second: say both"),
    ],
)
def test_where_a_host_cannot_stand_is_refused_by_the_name(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Stands(**said)
    assert why in str(caught.value)


def test_a_host_stands_anywhere_or_nobody_says_where() -> None:
    assert Stands() == Stands(rack="", nvlink_domain="")
    assert Stands("r7", 2e9, "d1", 7e11).nvlink_domain == "d1"
