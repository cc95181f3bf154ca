"""A node that lends HBM, for tests: of a GPU where there is one. Else a file of the host stands
for a GPU's memory, in the node's process and in its callers', and nothing else is replaced.

As a program it is `kvstore` with that file.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kvstore.limits import GiB
from tests.gpu import DEVICE
from tests.nodes import NodeProcess, short_directory
from tests.standing_in import StandingIn  # isort: split

from kvstore.kernels.gpu import exported  # after `tests.gpu`

GPU = DEVICE.type == "cuda"
NAME, LEFT_BYTES = "a GPU of tests", GiB


class Region:
    """Memory of a host that is held for that of a GPU."""

    device = DEVICE

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._map = descriptor, mmap.mmap(descriptor, size)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.handle = f"/proc/{os.getpid()}/fd/{descriptor}".encode().ljust(64, b"\0")

    def close(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        os.close(self._descriptor)


def taken(size: int, device: torch.device) -> Region:
    if size > LEFT_BYTES:
        raise exported.NoMemory(f"{device} has no {size} bytes left")
    descriptor = os.memfd_create("hbm")
    os.ftruncate(descriptor, size)
    return Region(descriptor, size)


def opened(handle: bytes, size: int, device: torch.device) -> Region:
    return Region(os.open(handle.rstrip(b"\0"), os.O_RDWR), size)


def device_of(index: int) -> torch.device:
    return DEVICE


def name_of(device: torch.device) -> str:
    return NAME


def stand_in(change: pytest.MonkeyPatch) -> None:
    """From now on this process takes the file for a GPU's memory, where there is no GPU."""
    if GPU:
        return
    for one in (taken, opened, name_of, device_of):
        change.setattr(exported, one.__name__, one)


@contextmanager
def lending(hbm: str = "16MiB", **options: Any) -> Iterator[NodeProcess]:
    """A node in a directory of its own, for as long as the block lasts."""
    with short_directory() as directory:
        more = [*options.pop("options", ()), "--hbm", hbm]
        node = StandingIn("tests.lending", directory, options=more, **options)
        try:
            yield node.start()
        finally:
            node.close()


def main() -> None:
    from kvstore.cli.main import main as command

    with pytest.MonkeyPatch.context() as change:
        stand_in(change)
        sys.exit(command())


if __name__ == "__main__":
    main()
