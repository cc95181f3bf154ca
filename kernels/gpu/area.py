"""Memory of a GPU in which blocks lie in slot order while somebody else moves them in and out, as a
network device does.

Out: pages are gathered and hashed, and under a codec coded; when `gathered` returns all of it lies
there, and the strips' entries are on the host. In: what has the entries that it is to have is
scattered; pages of other blocks are not touched, since nothing is scattered before it is verified.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pieces import Places
from ..shapes import Pages
from . import strips
from .batch import WORD_BYTES
from .exported import allocated
from .fetch import fetched
from .turn import Turn
from .upload import uploaded


class Area:
    """`memory`: uint8, on the device; `Places` of it are where strips and entries lie, and nothing
    of theirs on the host. Threads may use places that do not meet at once; one move runs at a
    time."""

    def __init__(self, size: int, device: torch.device) -> None:
        """Raises `exported.NoMemory`, or `exported.CudaError`."""
        self._turn = Turn(device)
        with _current(device), self._turn.taken():  # which others will take, in whatever mode
            # Not of torch, which may map several pieces as one: not every driver lets a network
            # device into such memory.
            self._region = allocated(size, device) if device.type == "cuda" else None
            self.memory = _of_host(size) if self._region is None else self._region.bytes
            self._words = self.memory.view(torch.int64)

    def close(self) -> None:
        """Give the memory back. Nobody uses it any more."""
        if self._region is not None:
            self._region.close()

    @property
    def cuda(self) -> int | None:
        """CUDA's number of the device; None of one that has the host's memory, as in tests."""
        return self.memory.device.index if self.memory.is_cuda else None

    def current(self) -> AbstractContextManager[Any]:
        """Inside this the device is this thread's, as whoever registers its memory wants it."""
        return _current(self.memory.device)

    def gathered(
        self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]
    ) -> NDArray[np.int64]:
        """Fill strips from the engine's pages; (blocks, strips that move): their entries.

        Pages are read once what the caller's stream has been told so far is done. Raises
        `ValueError` as `strips.gather` does, with nothing moved.
        """
        with self._turn.taken():
            about = (places.geometry, places.blocks, pages, block_table, *places.span)
            strips.gather(self.memory, *about)
            made: NDArray[np.int64] = fetched(self._words[self._entries(places)]).numpy()
        return made  # the turn is over: whoever is told now finds the strips

    def scattered(
        self,
        places: Places,
        entries: NDArray[np.int64],
        pages: Pages,
        block_table: NDArray[np.integer[Any]],
    ) -> NDArray[np.bool_]:
        """Fill the engine's pages; of each block, whether every strip that moves has its entry, of
        those that `gathered` returned where the block was made.

        Pages of other blocks are not touched. All is written when this returns. Raises as
        `gathered` does.
        """
        geometry, span = places.geometry, places.span
        with self._turn.taken():
            self._words[self._entries(places)] = self._there(entries)
            proven = strips.verify(self.memory, geometry, places.blocks, *span)
            good: NDArray[np.bool_] = fetched(proven).numpy()
            if good.any():
                about = (geometry, places.blocks.pick(good), pages, block_table, *span)
                good[good] = fetched(strips.scatter(self.memory, *about)).numpy()
        return good

    def _entries(self, places: Places) -> torch.Tensor:
        """(blocks, strips that move): where their entries are, in words."""
        return self._there(places.blocks.table_offsets[:, None] // WORD_BYTES + places.strips)

    def _there(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        (found,) = uploaded([numbers], self.memory.device)
        return found.view(numbers.shape)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _of_host(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
