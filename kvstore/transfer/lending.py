"""HBM that a node takes of one GPU at its start: all that it was told to, or none, and why.

A machine without CUDA is refused, since whoever asks for HBM there is mistaken. A GPU that has not
so much left is asked for a while: engines may have what a node lent that was killed, until they
hear of it. Then it is a state: the node serves without, and says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvstore.config import NodeConfig
from kvstore.errors import ConfigError
from kvstore.memory.arena import Arena
from kvstore.transfer.near import of_device

log = logging.getLogger(__name__)

WAIT_SECONDS, _PAUSE_SECONDS = 5.0, 0.1

Copy = Callable[[int, int, int], None]  # from an offset of the arena in HBM to one in DRAM, bytes


@dataclass(frozen=True, slots=True)
class Lending:
    """What a node has of a GPU's memory."""

    size_bytes: int = 0
    region: Any = None  # `kernels.gpu.exported.Taken`; None where there is none
    name: str = ""  # the GPU's, for every process
    cause: str = ""  # why there is none, where some was asked for

    @property
    def handle(self) -> bytes:
        """By which other processes open it."""
        return b"" if self.region is None else bytes(self.region.handle)

    @contextmanager
    def downward(self, arena: Arena) -> Iterator[Copy]:
        """Copies from there to DRAM, until the end of the block."""
        from kvstore.kernels.gpu.downward import Downward

        near = arena.spread.on(of_device(self.region.device))
        down = Downward(self.region, arena.bytes[: arena.size], near)
        try:
            yield lambda here, there, size: down.copy(here - arena.size, there, size)
        finally:
            down.close()  # the memory goes with this process: others may use it until they hear


NONE = Lending()


def lending(config: NodeConfig) -> Lending:
    """Take what the node was told to, in whole slabs. Raises `ConfigError`."""
    size = config.hbm_bytes // config.slab_bytes * config.slab_bytes
    if not size:
        return NONE
    asked = f"node.hbm = {config.hbm_bytes}"
    try:
        from kvstore.kernels.gpu import exported
    except ImportError as error:
        raise ConfigError(
            f"{asked}: needs {error.name or error}: pip install 'moonpool[gpu]'"
        ) from error
    try:
        device = exported.device_of(config.hbm_device)
        region = _taken(exported, size, device)
    except exported.NoDevice as error:
        raise ConfigError(f"{asked}, node.hbm_device = {config.hbm_device}: {error}") from error
    except (exported.NoMemory, exported.CudaError, RuntimeError) as error:  # torch's are the last
        log.warning("%s: the node serves without HBM: %s", asked, error)
        return Lending(cause=str(error))
    return Lending(size, region, exported.name_of(device))


def hindrance(index: int) -> str:
    """Why `lending` would refuse the GPU of that number; empty where it would not."""
    try:
        from kvstore.kernels.gpu import exported
    except ImportError as error:
        return f"needs {error.name or error}: pip install 'moonpool[gpu]'"
    try:
        exported.device_of(index)
    except exported.NoDevice as error:
        return str(error)
    return ""


def _taken(exported: Any, size: int, device: Any) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return exported.taken(size, device)
        except exported.NoMemory:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
