"""Bytes of HBM copied to memory of the host that the device knows, on a stream of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .exported import Region
from .registered import Registered
from .turn import Turn


class Downward:
    """Copies from a region to the host's memory, which is told to the device piece by piece. Any
    thread may call; one copy runs at a time."""

    def __init__(
        self, region: Region, host: NDArray[np.uint8], near: Sequence[tuple[int, int]] = ()
    ) -> None:
        """`near`: see `Registered`."""
        self._region, self._host = region, torch.from_numpy(host)
        self._known = Registered(host, region.device, near=near)
        self._turn = Turn(region.device)

    def copy(self, here: int, there: int, size: int) -> None:
        """`size` bytes, from an offset of the region to one of the host's memory; they are there
        when it returns."""
        with self._turn.taken():
            # CUDA copies to memory that it knows as one, or does not know, and refuses a mixture.
            for first, part in self._known.parts(there, size):
                source = self._region.bytes[here + first - there :][:part]
                self._host[first : first + part].copy_(source, non_blocking=True)

    def close(self) -> None:
        """The device is to forget the host's memory; for when nothing is copied."""
        self._known.end()
        self._host = torch.empty(0, dtype=torch.uint8)
