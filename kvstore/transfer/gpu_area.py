"""An area of a GPU's memory that this process's agent shows nodes, so that they move blocks there.

There is one of each GPU, in pieces of which a call has one at a time. Where UCX does not take it
(it was built or set to do without CUDA, the driver lets nobody else reach the GPU, the GPU is full)
there is none, and that is said once. It is never given back: see `kvstore.transfer.ucx_memory`.
"""

from __future__ import annotations

import logging
import threading
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.errors import ConfigError
from kvstore.limits import UCX_GPU_PIECE_BYTES, UCX_GPU_PIECES
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_memory import OnGpu, Shown
from kvstore.transfer.ucx_pieces import Pieces

log = logging.getLogger(__name__)

REST_SECONDS = 60.0  # after a failure with a node, until it is tried again


class Gpu:
    """One device's. Safe to use from several threads."""

    def __init__(self, device: Any) -> None:
        """`device`: a `torch.device`. Raises `ConfigError`."""
        from kvstore.kernels.gpu import area, exported  # late: torch, where there is HBM

        self.device, size = device, UCX_GPU_PIECE_BYTES * UCX_GPU_PIECES
        try:
            self.area = area.Area(size, device)
        except (exported.NoMemory, exported.CudaError, RuntimeError) as error:  # the last: torch's
            raise ConfigError(f"{device} has no {size} bytes for it: {error}") from error
        self.shown = shown(self.area)
        with self.area.current():
            try:
                shared_agent().register(self.shown)  # and never forgotten
            except BaseException:
                self.area.close()
                raise
        self.pieces = Pieces(UCX_GPU_PIECES, UCX_GPU_PIECE_BYTES)
        self._rests: dict[str, float] = {}  # by node, until when

    def tries(self, address: str) -> bool:
        """Whether a node is to be asked to move blocks here."""
        return time.monotonic() >= self._rests.get(address, 0.0)

    def rest(self, address: str) -> None:
        """It is not, for a while."""
        self._rests[address] = time.monotonic() + REST_SECONDS


def shown(area: Any) -> Shown:
    """An area (`kernels.gpu.area.Area`) as an agent is told of it: here, and nowhere else, it is
    decided what kind of memory a device's is."""
    if area.cuda is None:
        found: npt.NDArray[np.uint8] = area.memory.numpy()
        return found
    return OnGpu(area.memory.data_ptr(), area.memory.nbytes, area.cuda, area)


_gpus: dict[str, Gpu | ConfigError] = {}
_making = threading.Lock()


def gpu_of(device: Any) -> Gpu | None:
    """The one of a `torch.device` in this process; None where there can be none."""
    found = _made(device)
    return found if isinstance(found, Gpu) else None


def refusals() -> dict[str, str]:
    """Of each GPU that this process sees: why there can be none; empty where there is one."""
    if find_spec("nixl_cu12") is None:
        return {}
    try:
        from kvstore.kernels.gpu import exported
    except ImportError:
        return {}  # without torch nothing of a GPU's memory is moved
    made = {str(device): _made(device) for device in exported.devices()}
    return {name: "" if isinstance(one, Gpu) else str(one) for name, one in made.items()}


def _made(device: Any) -> Gpu | ConfigError:
    with _making:
        if str(device) not in _gpus:
            try:
                _gpus[str(device)] = Gpu(device)
            except ConfigError as error:
                log.warning("%s: %s: its blocks go through pinned host memory", device, error)
                _gpus[str(device)] = error
        return _gpus[str(device)]
