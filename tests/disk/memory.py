"""Memory as a disk wants it: at an address that O_DIRECT takes."""

from __future__ import annotations

import mmap

from kvstore.disk.protocol import DISK_ALIGN


def aligned(data: bytes | int) -> memoryview:
    """So many zeros, or these bytes, where a page begins."""
    size = data if isinstance(data, int) else len(data)
    memory = memoryview(mmap.mmap(-1, max(size, DISK_ALIGN)))[:size]
    if isinstance(data, bytes):
        memory[:] = data
    return memory


def page(value: int) -> memoryview:
    return aligned(bytes([value]) * DISK_ALIGN)
