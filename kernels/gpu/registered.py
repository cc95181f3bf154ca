"""Host memory that others map too, made known to a CUDA device, so that it copies from and to there
by itself, at the speed of the bus.

Registering pins pages, and takes a second for some gigabytes. So a thread does it, piece by piece,
those near the device first, and whoever asks is told what is known by now; it is never waited for.
Where the driver refuses, that is said once, and the rest stays unknown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

log = logging.getLogger(__name__)

# No copy goes across two pieces: a range that does is never covered. No slot does where slabs have
# a power of two of bytes, as they have unless somebody says otherwise.
PIECE_BYTES = 1 << 30


class Driver(Protocol):
    """Of CUDA: 0 where it has done what it was asked."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int: ...

    def cudaHostUnregister(self, address: int) -> int: ...


def cuda(device: torch.device) -> Driver:
    """For a thread that does nothing else: its current device is this one from now on, the first
    where no number is said."""
    torch.cuda.set_device(device.index or 0)
    found: Driver = torch.cuda.cudart()
    return found


class Registered:
    """Until `end`, by which the memory must still be mapped."""

    def __init__(
        self,
        memory: NDArray[np.uint8],
        device: torch.device,
        driver: Callable[[torch.device], Driver] = cuda,
        piece_bytes: int = PIECE_BYTES,
        near: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`near`: bytes [first, last) of the memory that are on the device's NUMA node."""
        self._memory, self._device, self._piece_bytes = memory, device, piece_bytes
        self._driver, self._near = driver, near
        self._known = np.zeros(len(memory) // piece_bytes + 1, bool)  # by piece
        self._forget: list[Callable[[], int]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if device.type == "cuda":
            self._thread = threading.Thread(target=self._register, name="moonpool-pin", daemon=True)
            self._thread.start()
        else:
            self._known[:] = True

    def covers(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these ranges the device knows, from `firsts[i]` to before `lasts[i]`."""
        each, known, size = self._piece_bytes, self._known, len(self._memory)
        piece = firsts // each
        within = (piece == (lasts - 1) // each) & (lasts <= size)
        return np.asarray(within & known[np.where(within, piece, 0)])

    def parts(self, first: int, size: int) -> Iterator[tuple[int, int]]:
        """A range of the memory in runs that lie in one piece each: where one begins, its bytes."""
        last = first + size
        while first < last:
            end = min(last, first // self._piece_bytes * self._piece_bytes + self._piece_bytes)
            yield first, end - first
            first = end

    def end(self) -> None:
        """The device is to forget it; for when nothing moves there."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for forget in self._forget:
            forget()
        self._memory = np.empty(0, np.uint8)  # of which there is nothing to know

    def _register(self) -> None:
        driver, size = self._driver(self._device), len(self._memory)
        pinned = 0
        for first in sorted(range(0, size, self._piece_bytes), key=self._is_far):
            if self._over.is_set():
                return
            last = min(size, first + self._piece_bytes)
            address = self._memory.ctypes.data + first
            error = int(driver.cudaHostRegister(address, last - first, 0))
            if error:
                log.warning(
                    "memory of the pool is not pinned for %s beyond %d of %d bytes (CUDA error "
                    "%d): blocks there take another copy on their way",
                    *(self._device, pinned, size, error),
                )
                return
            self._forget.append(partial(driver.cudaHostUnregister, address))
            self._known[first // self._piece_bytes] = True
            pinned += last - first

    def _is_far(self, offset: int) -> bool:
        return not any(first <= offset < last for first, last in self._near)
