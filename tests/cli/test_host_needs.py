"""What a node would refuse to start for is found before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import host_needs
from kvstore.cli.host_needs import lacking
from kvstore.config import NodeConfig
from kvstore.limits import GiB


def said(directory: Path, **told: Any) -> list[str]:
    return list(lacking(NodeConfig(directory, **told)))


def test_nothing_is_lacking_where_nothing_more_is_asked_for(tmp_path: Path) -> None:
    told = {"listen": "127.0.0.1:7410", "data_port": 7411, "metrics": "127.0.0.1:9401"}
    assert not said(tmp_path, **told)
    assert not said(tmp_path, metrics="127.0.0.1:0"), "they take free ports"


def test_memory_of_a_gpu_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said(tmp_path, hbm_bytes=GiB) == ["--hbm: there is no CUDA device here"]


def test_ucx_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_needs, "find_spec", lambda _: None)
    (one,) = said(tmp_path, transports=("tcp", "ucx"))
    assert one.startswith("--transport ucx: NIXL is not installed: ")


def test_metadata_in_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "metadata.db"
    assert said(tmp_path, metadata=str(path)) == [
        f"--metadata {path}: {tmp_path / 'file'} is no directory"
    ]
    assert not said(tmp_path, metadata=str(tmp_path / "not" / "there.db"))


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ({"data_port": 7410}, "--listen and --data-port"),
        ({"metrics": "127.0.0.1:7410"}, "--listen and --metrics"),
        ({"metrics": "0.0.0.0:7410"}, "--listen and --metrics"),
        ({"data_port": 7411, "metrics": "127.0.0.1:7411"}, "--data-port and --metrics"),
    ],
)
def test_two_that_are_to_listen_at_one_port(
    tmp_path: Path, told: dict[str, Any], options: str
) -> None:
    (one,) = said(tmp_path, listen="127.0.0.1:7410", **told)
    assert one.startswith(f"{options} name one port, ")
