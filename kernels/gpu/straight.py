"""KV of a GPU straight to and from slots in host memory that the device reaches: one copy, hashed
and, under a codec, coded on the device.

Out: a piece is gathered into slot order and hashed on the device, its bytes are copied to where
they belong, and only when they are there do the strips' entries follow, as with every writer. In:
a piece is copied to the device with the entries it is to have, and what has them is scattered;
pages of other blocks are not touched. The bus is busy with one piece while the host sees to another
and has told of a third.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pieces import Places
from ..shapes import ITEM_BYTES, Geometry, Pages
from ..strips import Blocks
from . import strips, xxh3
from .batch import PAIR_BYTES, WORD_BYTES, Batch
from .pages import common
from .rectangles import Rectangle, copied_in, copied_out, rectangles
from .turn import STREAMS, Mark, Turn

Rows = NDArray[np.int64]


class Straight:
    """For moves of one device. Any thread may call; one move runs at a time."""

    def __init__(self, device: torch.device, turn: Turn, piece_bytes: int) -> None:
        self._turn, self._piece_bytes = turn, piece_bytes
        self._lanes = tuple(_Lane(device, turn, number) for number in range(STREAMS))

    @staticmethod
    def takes(places: Places, pages: Pages) -> bool:
        """Whether strips and pages lie as the device's programs want them: see `strips`."""
        geometry, coding = places.geometry, places.geometry.coding
        least = geometry.strip_bytes(int(places.blocks.tokens.min()))
        unit = ITEM_BYTES[coding.item] if coding else WORD_BYTES
        steps = (pages.page_stride, pages.head_stride, pages.token_stride, pages.part_stride)
        there = [*steps, geometry.run_bytes, *pages.layer_addresses.tolist()]
        return least >= xxh3.BYTES_MIN and common(there, unit) == unit

    def gathered(self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]) -> None:
        """Fill the slots' strips from the engine's pages, each strip's entry after its bytes.

        Pages are read once what the caller's stream has been told so far is done. Raises
        `ValueError` as `strips.gather` does, with nothing moved.
        """
        ready = deque[tuple[_Lane, Rows]]()
        with self._turn.taken():
            move = _Move(places, pages, block_table)
            for lane, rows in self._pieces(move):
                if len(ready) == STREAMS - 1:
                    _enter(move, *ready.popleft())
                lane.use()
                lane.fit(move, rows)
                strips.gather(lane.memory, *move.about(lane.blocks))
                for one in move.rectangles(rows, lane.blocks):
                    copied_out(one, lane.memory, move.slots)
                lane.entries_out()
                ready.append((lane, rows))
            while ready:
                _enter(move, *ready.popleft())

    def scattered(
        self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]
    ) -> NDArray[np.bool_]:
        """Fill the engine's pages from the slots; of each block, whether every entry held.

        Pages of other blocks are not touched. All is written when this returns. Raises as
        `gathered` does.
        """
        good = np.zeros(len(places.blocks.tokens), np.bool_)
        ready = deque[tuple[_Lane, Rows]]()
        with self._turn.taken():
            move = _Move(places, pages, block_table)
            for lane, rows in self._pieces(move):
                if len(ready) == STREAMS - 1:
                    _scatter(move, *ready.popleft(), good)
                lane.use()
                lane.fit(move, rows)
                if ready:
                    lane.told(move)
                lane.entries_in(move.entries(rows))
                for one in move.rectangles(rows, lane.blocks):
                    copied_in(one, move.slots, lane.memory)
                if not ready:  # the bus had nothing to do: it moves these meanwhile
                    lane.told(move)
                lane.verify()
                ready.append((lane, rows))
            while ready:
                _scatter(move, *ready.popleft(), good)
        return good

    def _pieces(self, move: _Move) -> Iterator[tuple[_Lane, Rows]]:
        each = max(1, self._piece_bytes // move.geometry.payload_bytes)
        every = np.arange(len(move.places.blocks.tokens))
        for number, first in enumerate(range(0, len(every), each)):
            yield self._lanes[number % STREAMS], every[first : first + each]


class _Move:
    """One call's: the slots, the pages, and what of a slot moves."""

    def __init__(self, places: Places, pages: Pages, block_table: NDArray[np.integer[Any]]) -> None:
        self.places, self._pages, self._table = places, pages, block_table
        self.geometry: Geometry = places.moved
        self.span = (0, self.geometry.layers, 0, self.geometry.kv_heads)
        self.slots = torch.from_numpy(places.memory)
        self._words = places.memory[: len(places.memory) // WORD_BYTES * WORD_BYTES].view(np.int64)
        self._each, self._payloads = places.strips, places.blocks.payload_offsets.tolist()
        self._runs = cache(lambda tokens: list(places.runs(tokens)))  # alike in most blocks

    def about(self, blocks: Blocks) -> tuple[Any, ...]:
        """What `strips.gather` takes beside the memory."""
        return (self.geometry, blocks, self._pages, self._table, *self.span)

    def batch(self, memory: torch.Tensor, blocks: Blocks) -> Batch:
        """These blocks on their way from a lane's memory to the pages."""
        return Batch(memory, self.geometry, blocks, self._pages, self._table, self.span)

    def tables_bytes(self, count: int) -> int:
        """What strip tables of so many blocks take of a lane, in whole pairs of words."""
        return -(-WORD_BYTES * self.geometry.strips * count // PAIR_BYTES) * PAIR_BYTES

    def blocks(self, rows: Rows) -> Blocks:
        """Their places on a lane: all strip tables, then all payloads."""
        tables = WORD_BYTES * self.geometry.strips * np.arange(len(rows), dtype=np.int64)
        first = self.tables_bytes(len(rows))
        payloads = first + self.geometry.payload_bytes * np.arange(len(rows), dtype=np.int64)
        every = self.places.blocks
        return Blocks(payloads, tables, every.tokens[rows], every.starts[rows])

    def rectangles(self, rows: Rows, blocks: Blocks) -> list[Rectangle]:
        """Bytes of these blocks that move together: where their slots have them, where the lane."""
        each = zip(
            rows.tolist(), blocks.payload_offsets.tolist(), blocks.tokens.tolist(), strict=True
        )
        return rectangles(
            [
                (self._payloads[row] + slot, here + staged, size)
                for row, here, tokens in each
                for slot, staged, size in self._runs(tokens)
            ]
        )

    def entries(self, rows: Rows) -> NDArray[np.int64]:
        """(rows, strips): what the slots' tables say."""
        return self._words[self.at(rows)]

    def enter(self, at: NDArray[np.int64], entries: NDArray[np.int64]) -> None:
        """Have the slots' tables say so: whoever sees an entry may read the strip."""
        self._words[at] = entries

    def at(self, rows: Rows) -> NDArray[np.int64]:
        """(rows, strips): words of the slots' tables."""
        tables = self.places.blocks.table_offsets[rows] // WORD_BYTES
        return np.asarray(tables[:, None] + self._each)


class _Lane:
    """One piece on the device, and its entries on the host; the larger of what was asked stays.
    `use`: from then on what is told goes behind what this lane was told alone; all of it is."""

    def __init__(self, device: torch.device, turn: Turn, number: int) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self.use = partial(turn.use, number)
        self._room = torch.empty(0, dtype=torch.uint8, device=device)
        self._host = torch.empty(0, dtype=torch.int64)
        self._proven = torch.empty(0, dtype=torch.bool)
        self._mark = Mark(device)

    def fit(self, move: _Move, rows: Rows) -> None:
        """Have room for these, once what was here before has left."""
        self._mark.wait()
        self._count, strips = len(rows), move.geometry.strips
        size = move.tables_bytes(self._count) + self._count * move.geometry.payload_bytes
        if len(self._room) < size:
            self._room = torch.empty(size, dtype=torch.uint8, device=self._device)
        if len(self._host) < (each := self._count * strips):
            self._host = torch.empty(each, dtype=torch.int64, pin_memory=self._cuda)
            self._proven = torch.empty(each, dtype=torch.bool, pin_memory=self._cuda)
        self.memory, self.blocks = self._room[:size], move.blocks(rows)
        self._tables = self.memory[: WORD_BYTES * self._count * strips].view(torch.int64)

    def entries_out(self) -> None:
        """After all that came before, to the host; `entries` waits for that."""
        self._host[: len(self._tables)].copy_(self._tables, non_blocking=True)
        self._mark.set()

    def entries(self) -> NDArray[np.int64]:
        """(blocks, strips): what the device says of its strips, all of which has left it."""
        found: NDArray[np.int64] = self._host[: len(self._tables)].numpy()
        self._mark.wait()
        return found.reshape(self._count, -1)

    def entries_in(self, entries: NDArray[np.int64]) -> None:
        """What the strips that follow are to have."""
        said = self._host[: len(self._tables)]
        said.copy_(torch.from_numpy(entries.ravel()))
        self._tables.copy_(said, non_blocking=True)

    def told(self, move: _Move) -> None:
        """Have the device know what kernels are told of these blocks. Behind their bytes that might
        wait for the next piece's, on the same bus."""
        self._told = move.batch(self.memory, self.blocks)

    def verify(self) -> None:
        strips.verify_told(self._told)
        self._proven[: len(self._tables)].copy_(self._told.good, non_blocking=True)
        self._mark.set()

    def proven(self) -> NDArray[np.bool_]:
        """Which of the blocks are what their entries say."""
        each = self._proven[: len(self._tables)].numpy().reshape(self._count, -1)
        self._mark.wait()
        return np.asarray(each.all(axis=1))

    def scatter(self, move: _Move, good: NDArray[np.bool_]) -> None:
        """Have the blocks that are go to the pages."""
        told = self._told if good.all() else move.batch(self.memory, self.blocks.pick(good))
        strips.scatter_told(told)
        del self._told  # which holds what is here, as it was given to these
        self._mark.set()


def _enter(move: _Move, lane: _Lane, rows: Rows) -> None:
    at = move.at(rows)  # worked out before the bytes are there
    move.enter(at, lane.entries())


def _scatter(move: _Move, lane: _Lane, rows: Rows, good: NDArray[np.bool_]) -> None:
    """Say which of these are, and have them go to the pages."""
    lane.use()
    proven = good[rows] = lane.proven()
    if proven.any():
        lane.scatter(move, proven)
