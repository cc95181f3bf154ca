"""Every form of the disk for the contract, and filesystems of a size and kind for the real one."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import Disk
from kvstore.errors import ConfigError
from kvstore.limits import KiB
from tests.simulation.sim_disk import SimDisk

FILES, FILE_BYTES = 3, 256 * KiB


class Form(Protocol):
    disk: Disk

    def restart(self) -> Disk:
        """End what uses the disk without telling it, and come back to what is there then."""
        ...


class LocalForm:
    buffered = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.disk = self._open()

    def restart(self) -> Disk:
        self.disk.close()
        self.disk = self._open()
        return self.disk

    def _open(self) -> LocalDisk:
        size = FILES * FILE_BYTES
        try:
            return LocalDisk.open(
                self._folder, size, FILE_BYTES, FILE_BYTES, buffered=self.buffered
            )
        except ConfigError as error:
            if "O_DIRECT" in str(error):
                pytest.skip(str(error))
            raise


class BufferedForm(LocalForm):
    buffered = True


class SimForm:
    def __init__(self, _: Path) -> None:
        self.disk = SimDisk(FILES, FILE_BYTES, random.Random(1))

    def restart(self) -> Disk:
        self.disk = self.disk.crash()
        return self.disk


FORMS = {"direct": LocalForm, "buffered": BufferedForm, "simulated": SimForm}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Form]:
    form = request.param(tmp_path / "ssd")
    yield form
    form.disk.close()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`mounted("tmpfs", "size=16m")` mounts a new filesystem, and the test's end unmounts it."""
    places: list[Path] = []

    def mount(kind: str, options: str = "defaults") -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        command = ["mount", "-t", kind, "-o", options, kind, str(place)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("mount is not installed")
        if ran.returncode:
            pytest.skip(f"mounting is not permitted here: {ran.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        # Lazily: a test that failed may have left a disk open there.
        subprocess.run(["umount", "-l", str(place)], check=True)
