"""Compiled code that moves bytes over sockets, in processes that have it.

Callers load it when they begin. A storage node starts without a compiler, and most never need one:
it loads this beside its work when many bytes come over the network for the first time. Until then,
and where the system lets no process make code (W^X), the interpreter does the same in its own way:
never a byte less checked, only slower.
"""

from __future__ import annotations

import logging
import mmap
import threading
from types import ModuleType
from typing import NamedTuple

from kvstore.limits import MiB

log = logging.getLogger(__name__)

WORTH_BYTES = 4 * MiB  # of one run, from which on it pays to load


class Kernels(NamedTuple):
    """As `kvstore.kernels.sockets` and its like are."""

    sockets: ModuleType
    read: ModuleType
    write: ModuleType


class _Loaded:
    """Of this process."""

    def __init__(self) -> None:
        self.kernels: Kernels | None = None
        self.begun = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Once, in a thread of its own."""
        with self._lock:
            if self.begun:
                return
            self.begun = True
        thread = threading.Thread(target=self._try, name="socket-kernels", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.begun = False  # the system has no thread left: another time

    def load(self) -> None:
        from kvstore.kernels import socket_read, socket_write, sockets

        self.kernels = Kernels(sockets, socket_read, socket_write)

    def _try(self) -> None:
        try:
            _make_code()
            self.load()
        except Exception as error:
            log.info("bytes of other hosts are taken without compiled code: %s", error)


def load() -> None:
    """Have them from now on. For whoever computes with the kernels anyway."""
    if _loaded.kernels is None:
        _loaded.load()


def at_hand(size: int) -> Kernels | None:
    """For a run of so many bytes; None where this process does not have them, or not yet."""
    kernels = _loaded.kernels
    if kernels is None and size >= WORTH_BYTES and not _loaded.begun:
        _loaded.begin()
    return kernels


def _make_code() -> None:
    """Raises `PermissionError` where memory must not become code: LLVM would end the process."""
    mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


_loaded = _Loaded()
