"""What a node takes hold of before it serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.config import NodeConfig
from kvstore.node.start import next_epoch


def test_an_epoch_is_on_the_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss has the next start give out the same one, and its generations, again."""
    config, epoch = NodeConfig(directory=tmp_path), tmp_path / "node.epoch"
    synced: list[str] = []  # what is durable: of a file its text, of the directory that of its name
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(epoch.read_text() if path == tmp_path else path.read_text())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    for number in (1, 2):
        assert next_epoch(config) == number
        assert synced == [f"{number}\n"] * 2
        synced.clear()
