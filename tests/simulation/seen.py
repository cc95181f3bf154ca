"""A small simulated disk filled with single values, and what there is to see of it."""

from __future__ import annotations

import random

from kvstore.disk.protocol import DISK_ALIGN
from kvstore.limits import KiB
from tests.simulation.sim_disk import SECTOR_BYTES, Faults, SimDisk

FILES, FILE_BYTES = 2, 64 * KiB
PAGES = FILE_BYTES // DISK_ALIGN
SECTORS = FILE_BYTES // SECTOR_BYTES


def sim(seed: int = 1, **faults: float) -> SimDisk:
    return SimDisk(FILES, FILE_BYTES, random.Random(seed), Faults(**faults))


def fill(disk: SimDisk, value: int, file: int = 0, pages: int = PAGES, first: int = 0) -> None:
    data = memoryview(bytes([value]) * (pages * DISK_ALIGN))
    disk.write(file, first * DISK_ALIGN, [data])


def read(disk: SimDisk, file: int = 0) -> bytes:
    into = bytearray(FILE_BYTES)
    disk.read(file, 0, memoryview(into))
    return bytes(into)


def sectors(disk: SimDisk, file: int = 0) -> list[int]:
    """The value of each sector, every one of which must be whole."""
    data = read(disk, file)
    found = [data[start : start + SECTOR_BYTES] for start in range(0, FILE_BYTES, SECTOR_BYTES)]
    assert all(len(set(sector)) == 1 for sector in found), "a sector is torn"
    return [sector[0] for sector in found]


def places(disk: SimDisk, value: int) -> list[tuple[int, int]]:
    """The pages that hold nothing but this value."""
    whole = bytes([value]) * DISK_ALIGN
    return [
        (file, number)
        for file in range(FILES)
        for number in range(PAGES)
        if read(disk, file)[number * DISK_ALIGN :][:DISK_ALIGN] == whole
    ]
