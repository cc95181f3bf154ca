"""One directory is one disk's at a time, and its next user's as soon as it was let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.disk.local import LocalDisk
from kvstore.errors import ConfigError
from tests.disk.child import FILE_BYTES, SIZE
from tests.tree import ROOT

CHILD = [sys.executable, "-m", "tests.disk.child"]


def opened(path: Path, size: int = SIZE) -> LocalDisk:
    return LocalDisk.open(path, size, FILE_BYTES, FILE_BYTES, buffered=True)


def test_two_processes_do_not_use_one_directory_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    command = [*CHILD, "hold", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(ConfigError, match=f"in use by process {child.pid}: stop it"):
            opened(tmp_path)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    opened(tmp_path).close()


def test_one_directory_is_not_opened_twice_in_one_process(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}: stop it"):
        opened(tmp_path)
    (tmp_path / "lock").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"node\.ssd .* in use by another process"):
        opened(tmp_path)
    disk.close()


def test_a_closed_disk_can_be_closed_again_and_leaves_the_directory_free(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    disk.close()
    disk.close()
    opened(tmp_path).close()


def test_neither_a_closed_disk_nor_a_refused_start_leaves_anything_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened(tmp_path, 4 * SIZE).close()
    for _ in range(3):
        with pytest.raises(ConfigError, match="holds 4 files"):
            opened(tmp_path)
    (tmp_path / "index" / "data.mdb").write_bytes(bytes(8192))
    opened(tmp_path, 4 * SIZE).close()
    assert (tmp_path / "index.damaged-0").exists()
    assert len(os.listdir("/proc/self/fd")) == before
