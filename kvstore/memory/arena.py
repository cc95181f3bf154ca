"""The DRAM arena: one anonymous shared mapping that the node makes and processes of its host map.

It is a sealed memfd. It has no name, so nothing is left behind by a kill, and a restarted node has
another arena: a stopped writer that resumes writes into memory nobody reads any more. The seals
keep a peer from shrinking the file under our mapping.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from typing import Self

import numpy as np
import numpy.typing as npt

from kvstore.core.spread import ALIKE, Spread
from kvstore.errors import ConfigError
from kvstore.limits import MiB
from kvstore.memory.bound import bound

# What goes over the data socket: the caller's token, then this with the arena's descriptor.
TOKEN_BYTES = 16
HELLO = struct.Struct("<8sQ")  # magic, arena bytes
HELLO_MAGIC = b"MPARENA1"

_F_ADD_SEALS, _SEALS = 1033, 0x0001 | 0x0002 | 0x0004  # seal, shrink, grow


class Arena:
    """A mapping of `size` bytes. The node makes it; clients map the descriptor they are handed.

    Behind them are the heads of slots in HBM, where those would be if it lay here: of `hbm_bytes`
    more only they are touched, so that they take a few small pages each and no more.

    `spread`: the NUMA nodes that its pages are on.
    """

    def __init__(self, descriptor: int, size: int, protection: int, hbm_bytes: int = 0) -> None:
        self.descriptor, self.spread = descriptor, ALIKE
        self.size, self.hbm_bytes = size, hbm_bytes
        self._map = mmap.mmap(descriptor, size + hbm_bytes, mmap.MAP_SHARED, protection)
        with suppress(OSError):  # a kernel that knows none of it
            # Heeded where shmem_enabled is "advise".
            whole = size // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_HUGEPAGE, 0, whole)
            if hbm_bytes:
                self._map.madvise(mmap.MADV_NOHUGEPAGE, whole)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    @classmethod
    def create(cls, size: int, hbm_bytes: int = 0, spread: Spread = ALIKE) -> Self:
        """New zeroed memory, spread so if the kernel lets it. Pages are taken from the system when
        they are first touched."""
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if not 0 < size <= free:
            raise ConfigError(
                f"node.dram = {size // MiB}MiB: this machine has {free // MiB}MiB of memory: "
                "write less than that"
            )
        descriptor = os.memfd_create("moonpool-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size + hbm_bytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
        arena = cls(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE, hbm_bytes)
        arena.spread = bound(arena.bytes.ctypes.data, spread)
        return arena

    @classmethod
    def map(
        cls,
        descriptor: int,
        size: int,
        protection: int,
        hbm_bytes: int = 0,
        spread: Spread = ALIKE,
    ) -> Self:
        """Map an arena that a node handed out. Its descriptor is closed, whatever comes of it.
        `spread`: as the node says.

        Refuses one whose size is not what the node said.
        """
        try:
            actual = os.fstat(descriptor).st_size
            if actual != size + hbm_bytes:
                raise ConfigError(
                    f"the node's arena has {actual} bytes; it announced {size + hbm_bytes}"
                )
            arena = cls(descriptor, size, protection, hbm_bytes)
        finally:
            os.close(descriptor)  # a mapping keeps one of its own, which goes when it does
        arena.descriptor, arena.spread = -1, spread
        return arena

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """All of it, heads of slots in HBM too, but for what is less than a word."""
        return self.bytes[: len(self.bytes) // 8 * 8].view(np.uint64)

    @property
    def view(self) -> memoryview:
        return memoryview(self._map)

    def close(self) -> bool:
        """Unmap and close. False while views of the memory are still in use: then both stay."""
        self.bytes = np.empty(0, dtype=np.uint8)
        try:
            self._map.close()
        except BufferError:
            self.bytes = np.frombuffer(self._map, dtype=np.uint8)
            return False
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        return True
