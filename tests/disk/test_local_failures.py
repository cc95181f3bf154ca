"""The real disk on a filesystem that fills up, and in a process whose syncs fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DiskFull
from kvstore.errors import ConfigError
from kvstore.limits import KiB, MiB
from tests.disk.child import FILE_BYTES, SIZE
from tests.disk.memory import page
from tests.tree import ROOT

CHILD = [sys.executable, "-m", "tests.disk.child"]
Mounted = Callable[..., Path]


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(64 * KiB))


def entries(disk: LocalDisk) -> int:
    return sum(1 for _ in disk.scan())


def test_a_full_filesystem_stops_the_index_only_and_only_until_room_is_free(
    mounted: Mounted,
) -> None:
    path = mounted("tmpfs", "size=16m")
    disk = LocalDisk.open(path / "ssd", 8 * MiB, 1 * MiB, 1 * MiB, buffered=True)
    disk.commit({b"before": b""}, ())
    fill(path / "filler")
    committed = 1
    with pytest.raises(DiskFull, match="index"):
        for number in range(1000):
            disk.commit({b"%d" % number: bytes(64 * KiB)}, ())
            committed += 1
    assert entries(disk) == committed > 10, "the index has room of its own"
    disk.write(7, 0, [page(1)] * 256)
    disk.sync(7)
    (path / "filler").unlink()
    disk.commit({b"after": bytes(64 * KiB)}, ())
    disk.close()
    disk = LocalDisk.open(path / "ssd", 8 * MiB, 1 * MiB, 1 * MiB, buffered=True)
    assert entries(disk) == committed + 1
    disk.close()


def test_a_full_filesystem_is_refused_at_the_start_and_taken_when_room_is_free(
    mounted: Mounted,
) -> None:
    path = mounted("tmpfs", "size=16m")
    fill(path / "filler")
    with pytest.raises(ConfigError, match=r"node\.ssd .* 0 bytes are free|No space left"):
        LocalDisk.open(path / "ssd", 8 * MiB, 1 * MiB, 1 * MiB, buffered=True)
    (path / "filler").unlink()
    LocalDisk.open(path / "ssd", 8 * MiB, 1 * MiB, 1 * MiB, buffered=True).close()


def under_failing_sync(how: str, path: Path, file: Path) -> list[str]:
    """What a child says whose first fdatasync of `file` fails with EIO."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(file), *trace]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()}")
    ran = subprocess.run(
        [*command, *CHILD, how, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_sync_that_failed_is_told_of_and_never_believed_again(tmp_path: Path) -> None:
    """The kernel's second answer is success, for pages that it threw away."""
    LocalDisk.open(tmp_path, SIZE, FILE_BYTES, FILE_BYTES, buffered=True).close()
    file = tmp_path / "blocks-00000"
    first, second, _ = under_failing_sync("sync", tmp_path, file)
    assert first == f"DiskError: syncing {file}: Input/output error"
    assert second == f"DiskError: syncing {file}: it failed before, retire the file"


def test_a_commit_whose_sync_failed_is_told_of_and_changed_nothing(tmp_path: Path) -> None:
    LocalDisk.open(tmp_path, SIZE, FILE_BYTES, FILE_BYTES, buffered=True).close()
    file = tmp_path / "index" / "data.mdb"
    first, second, entries = under_failing_sync("commit", tmp_path, file)
    assert first.startswith("DiskError: committing to")
    assert "Input/output error" in first
    assert (second, entries) == ("passed", "1")
