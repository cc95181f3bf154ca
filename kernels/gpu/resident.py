"""KV of a GPU to and from slots that lie in HBM of the same one: moved, hashed and, under a codec,
coded on the device, with no byte of it over the bus. What takes `straight` takes this way too.

A slot's head stays on the host, where all of the host look for it: only entries of strip tables go
over. Each slot has room for a table of its own in HBM, which the device's programs fill and read.
Nobody trusts it: a block is what the host's table says only if the device's says the same, and its
bytes do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pieces import Places
from ..shapes import Pages
from ..strips import Blocks
from . import strips
from .batch import WORD_BYTES
from .fetch import fetched
from .turn import Turn
from .upload import uploaded


class Resident:
    """Slots of `arena` (uint8, on the device), whose first byte is that at offset `first` of the
    memory that the slots' heads are in. Any thread may call; one move runs at a time."""

    def __init__(self, arena: torch.Tensor, first: int, turn: Turn) -> None:
        self._arena, self._first, self._turn = arena, first, turn
        self._words = arena[: len(arena) // WORD_BYTES * WORD_BYTES].view(torch.int64)

    def gathered(self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]) -> None:
        """Fill the slots' strips from the engine's pages, each strip's entry after its bytes.

        Pages are read once what the caller's stream has been told so far is done. Raises
        `ValueError` as `strips.gather` does, with nothing moved.
        """
        here, at = self._here(places.blocks), _entries(places)
        with self._turn.taken():
            strips.gather(self._arena, places.geometry, here, pages, block_table, *places.span)
            made = self._tables(at)
        _words(places)[at] = made  # once all is done: whoever sees an entry may read the strip

    def scattered(
        self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]
    ) -> NDArray[np.bool_]:
        """Fill the engine's pages from the slots; of each block, whether every entry held.

        Pages of other blocks are not touched. All is written when this returns. Raises as
        `gathered` does.
        """
        here, at = self._here(places.blocks), _entries(places)
        with self._turn.taken():
            proven = strips.verify(self._arena, places.geometry, here, *places.span)
            said = (self._tables(at) == _words(places)[at]).all(axis=1)
            good: NDArray[np.bool_] = fetched(proven).numpy() & said
            if good.any():
                about = (places.geometry, here.pick(good), pages, block_table, *places.span)
                good[good] = fetched(strips.scatter(self._arena, *about)).numpy()
        return good

    def _here(self, blocks: Blocks) -> Blocks:
        """Where the slots are in the arena."""
        return Blocks(
            blocks.payload_offsets - self._first,
            blocks.table_offsets - self._first,
            blocks.tokens,
            blocks.starts,
        )

    def _tables(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Entries of the device's tables, by their places in the host's, after all told before."""
        (where,) = uploaded([at - self._first // WORD_BYTES], self._arena.device)
        found: NDArray[np.int64] = fetched(self._words[where.view(at.shape)]).numpy()
        return found


def _words(places: Places) -> NDArray[np.int64]:
    """The host's memory."""
    whole = len(places.memory) // WORD_BYTES * WORD_BYTES
    found: NDArray[np.int64] = places.memory[:whole].view(np.int64)
    return found


def _entries(places: Places) -> NDArray[np.int64]:
    """(blocks, strips that move): places of their entries in the host's memory, in words."""
    tables = places.blocks.table_offsets // WORD_BYTES
    found: NDArray[np.int64] = tables[:, None] + places.strips
    return found
