"""KV of a GPU on its way through pinned host memory, in slot order, a bounded piece at a time.

Whoever moves host memory, over any transport, so moves HBM too. On the way out a piece is gathered
and copied while one before it is stored; on the way in one is copied and scattered while the next
is loaded. Three pieces are under way at most, whatever a call moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..pieces import Piece, Run
from .pages import gather, scattering
from .straight import Straight
from .turn import STREAMS, Mark, Turn

PIECE_BYTES = 64 << 20  # a bus takes a millisecond: the host tells of the next one meanwhile


class Staging:
    """Pinned memory for the moves of one device. Any thread may call; one move runs at a time, and
    `straight` beside it: whoever stores and loads pieces here may wait for another host."""

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        self.device, self._piece_bytes = device, piece_bytes
        self._turn = Turn(device)
        self._lanes = tuple(_Lane(device, self._turn, number) for number in range(STREAMS))
        self.straight = Straight(device, Turn(device), piece_bytes)

    def gathered(self, run: Run, store: Callable[[Piece], None]) -> None:
        """Give `store` the run's blocks, piece after piece.

        Pages are read once what the caller's stream has been told so far is done. Raises
        `ValueError` as `pages.gather` does, and what `store` raises.
        """
        ready = deque[tuple[_Lane, Piece]]()

        def stored() -> None:
            lane, piece = ready.popleft()
            lane.wait()
            store(piece)

        with self._turn.taken():
            for lane, rows in self._pieces(run):
                if len(ready) == STREAMS - 1:
                    stored()
                lane.use()
                staged = lane.room(len(rows) * run.geometry.payload_bytes)
                blocks = run.blocks(rows, int(rows[0]))
                gather(staged, *run.about(blocks))
                piece = Piece(_slice(rows), lane.copied_out(len(staged)))
                ready.append((lane, piece))
            while ready:
                stored()

    def scattered(self, run: Run, load: Callable[[Piece], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Have `load` fill piece after piece; blocks that it says are good reach the pages.

        Pages of other blocks are not touched. All is written when this returns. Raises as
        `gathered` does.
        """
        good = np.zeros(len(run.tokens), np.bool_)
        with self._turn.taken():
            for lane, rows in self._pieces(run):
                lane.wait()
                size = len(rows) * run.geometry.payload_bytes
                good[rows] = load(Piece(_slice(rows), lane.host_room(size)))
                lane.use()
                staged, first = lane.room(size), int(rows[0])
                if not first:  # the bus has nothing to do: it moves these meanwhile
                    lane.copied_in(size)
                blocks = run.blocks(rows[good[rows]], first)
                # What the kernel is told goes first: behind the bytes it might wait for those
                # of the next piece, on the same bus.
                scatter = scattering(staged, *run.about(blocks))
                if first:
                    lane.copied_in(size)
                scatter()
                lane.mark()
        return good

    def _pieces(self, run: Run) -> Iterator[tuple[_Lane, NDArray[np.int64]]]:
        each = max(1, self._piece_bytes // run.geometry.payload_bytes)
        every = np.arange(len(run.tokens))
        for number, first in enumerate(range(0, len(every), each)):
            yield self._lanes[number % STREAMS], every[first : first + each]


@cache
def staging_of(device: torch.device) -> Staging:
    """The one of a device in this process."""
    return Staging(device)


class _Lane:
    """One piece on the host and on the device; the larger of what was asked for stays. `use`: from
    then on what is told goes behind what this lane was told alone; all of a lane's is told so."""

    def __init__(self, device: torch.device, turn: Turn, number: int) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self.use = partial(turn.use, number)
        self._host = torch.empty(0, dtype=torch.uint8)
        self._staged = torch.empty(0, dtype=torch.uint8, device=device)
        mark = Mark(device)
        self.mark, self.wait = mark.set, mark.wait

    def room(self, size: int) -> torch.Tensor:
        """On the device."""
        if len(self._staged) < size:
            self._staged = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._staged[:size]

    def host_room(self, size: int) -> NDArray[np.uint8]:
        if len(self._host) < size:
            self._host = torch.empty(size, dtype=torch.uint8, pin_memory=self._cuda)
        found: NDArray[np.uint8] = self._host[:size].numpy()
        return found

    def copied_out(self, size: int) -> NDArray[np.uint8]:
        """What lies on the device, on the host once `wait` returns."""
        found = self.host_room(size)
        self._host[:size].copy_(self._staged[:size], non_blocking=True)
        self.mark()
        return found

    def copied_in(self, size: int) -> None:
        """What lies on the host, on the device for whatever the stream is told next."""
        self._staged[:size].copy_(self._host[:size], non_blocking=True)


def _slice(rows: NDArray[np.int64]) -> slice:
    return slice(int(rows[0]), int(rows[-1]) + 1)
