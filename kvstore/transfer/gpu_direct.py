"""UCX straight into and out of a GPU's memory: a node moves blocks to and from an area there
(`kvstore.transfer.gpu_area`), and what came the GPU verifies before any of it reaches a page.

Tables and roots are looked at on the host, as ever. Where there is no area, or none is free, or the
node did not reach it of late, blocks go through pinned host memory (`kvstore.transfer.staged`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvstore.errors import Unavailable
from kvstore.kernels.pieces import Places
from kvstore.kernels.strips import Blocks
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import DATA_CALL_BLOCKS_MAX
from kvstore.transfer.calls import few
from kvstore.transfer.gpu_area import REST_SECONDS, Gpu, gpu_of
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.landing import Landing, rows_of
from kvstore.transfer.lanes import Lanes
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots
from kvstore.transfer.tcp import check_stored
from kvstore.transfer.ucx_lane import UcxLane
from kvstore.transfer.ucx_memory import Shown
from kvstore.transfer.ucx_pieces import PiecesTaken

log = logging.getLogger(__name__)

_NOTHING = np.zeros(0, dtype=np.uint8)


class GpuDirect:
    """One transport's. Safe to use from several threads."""

    def __init__(self, lanes: Lanes, address: str) -> None:
        """`lanes`: of `UcxLane`s, to the node at `address`."""
        self._lanes, self._address = lanes, address
        self._lock = threading.Lock()
        self._reached: set[Gpu] = set()

    def takes(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """As `Transport.takes`: all of them, or none."""
        none = np.zeros(len(slots), bool)
        if not len(slots):
            return none
        blocks = Blocks(starts, starts, slots.tokens, starts)
        places = Places(_NOTHING, geometry(layout), span(fragment), blocks)
        if not memory.staging.straight.takes(places, pages(memory, fragment)):
            return none
        gpu = gpu_of(memory.staging.device)
        if gpu is None or not gpu.pieces.free or _block_bytes(layout) > gpu.pieces.size:
            return none
        return ~none if self._reaches(gpu) else none

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        """HBM -> slots, as `Transport.store`."""
        statuses = np.zeros(len(slots), dtype=np.uint8)
        with self._trying(memory) as gpu:
            with self._lane() as lane, lane.piece(gpu.pieces) as at:
                for rows in few(np.arange(len(slots)), DATA_CALL_BLOCKS_MAX):
                    some, every = slots.pick(rows), np.arange(len(rows))
                    ashore = _Ashore(gpu, at, layout, some, memory, starts[rows], fragment)
                    handles = some.handles.tolist()
                    statuses[rows] = lane.write(handles, ashore, every, fragment)
            check_stored(statuses, fragment)

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        """Slots -> HBM, as `Transport.load`."""
        good, vouched = np.zeros(len(slots), dtype=bool), np.zeros(len(slots), dtype=bool)
        with self._trying(memory) as gpu, self._lane() as lane, lane.piece(gpu.pieces) as at:
            for rows in few(np.arange(len(slots)), DATA_CALL_BLOCKS_MAX):
                some, every = slots.pick(rows), np.arange(len(rows))
                ashore = _Ashore(gpu, at, layout, some, memory, starts[rows], fragment)
                for came in lane.read(some.handles.tolist(), ashore, every, fragment):
                    sound = came[ashore.vouched(came, some.roots[came])]
                    vouched[rows[sound]] = True
                    good[rows[sound]] = ashore.scatter(sound)
        wrong = np.count_nonzero(vouched & slots.rooted & ~good)
        if wrong:  # their slots are at fault, or this way: the next call tells
            self._failed(gpu, Unavailable(f"{wrong} blocks failed their hash"))
        return good

    @contextmanager
    def _trying(self, memory: Memory) -> Iterator[Gpu]:
        """A call. Where it fails the node is left alone with this for a while."""
        gpu = gpu_of(memory.staging.device)
        assert gpu is not None, "asked first"
        try:
            yield gpu
        except PiecesTaken:  # by this process's other calls: the node has done nothing wrong
            raise
        except Unavailable as error:
            self._failed(gpu, error)
            raise

    @contextmanager
    def _lane(self) -> Iterator[UcxLane]:
        """One connection, used in the caller's own thread: the GPU's work goes behind what that
        thread's stream was told."""
        with self._lanes.lane() as lane:
            assert isinstance(lane, UcxLane), "as this was made with"
            yield lane

    def _reaches(self, gpu: Gpu) -> bool:
        """Whether the node can be told of the area, which is tried before any block depends on it;
        and no call has failed of late."""
        with self._lock:
            if not gpu.tries(self._address):  # nor by those who waited while another tried
                return False
            if gpu not in self._reached:
                try:
                    with self._lane() as lane:
                        lane.show(gpu.shown)
                except Unavailable as error:
                    self._failed(gpu, error)
                    return False
                self._reached.add(gpu)
            return True

    def _failed(self, gpu: Gpu, error: Unavailable) -> None:
        self._reached.discard(gpu)
        gpu.rest(self._address)
        log.warning(
            "node %s: ucx did not move blocks straight to or from %s (%s): for %d s they go "
            "through pinned host memory",
            *(self._address, gpu.device, error, REST_SECONDS),
        )


class _Ashore(Landing):
    """Blocks of one call in a piece of an area, whose few places they take in turn.

    Strip tables lie before the payloads, as `filling.Staged` has them; the node fills payloads
    alone, and no table of the device's says anything before it was written from the host.
    """

    def __init__(
        self,
        gpu: Gpu,
        piece: int,
        layout: SlotLayout,
        slots: Slots,
        memory: Memory,
        starts: Ints,
        fragment: Fragment,
    ) -> None:
        self._gpu, self._memory, self._starts, self._fragment = gpu, memory, starts, fragment
        self._places = min(len(slots), gpu.pieces.size // _block_bytes(layout))
        place = np.arange(len(slots), dtype=np.int64) % self._places
        self._table_offsets = piece + 8 * layout.strips * place
        offsets = piece + 8 * layout.strips * self._places + layout.payload_bytes * place
        super().__init__(layout, _NOTHING, offsets, slots.tokens)
        self._entries = rows_of(layout, fragment)

    @property
    def shown(self) -> Shown:
        return self._gpu.shown

    @property
    def places(self) -> int:
        return self._places

    def together(self, fragment: Fragment) -> int:
        return self._places  # whatever has come by then is worth one turn of the GPU

    def ready(self, rows: Ints, fragment: Fragment) -> None:
        """The engine's pages -> their places, and entries to the tables on the host; all of it has
        happened when this returns."""
        about = (pages(self._memory, self._fragment), self._memory.block_table)
        made = self._gpu.area.gathered(self._lying(rows), *about)
        self.tables[np.ix_(rows, self._entries)] = made.view(np.uint64)

    def scatter(self, rows: Ints) -> Mask:
        """Their places -> the engine's pages; which of them are what their tables say."""
        said = self.tables[np.ix_(rows, self._entries)].view(np.int64)
        about = (pages(self._memory, self._fragment), self._memory.block_table)
        good: Mask = self._gpu.area.scattered(self._lying(rows), said, *about)
        return good

    def _lying(self, rows: Ints) -> Places:
        where = (self.offsets[rows], self._table_offsets[rows])
        blocks = Blocks(*where, self.tokens[rows], self._starts[rows])
        return Places(_NOTHING, geometry(self.layout), span(self._fragment), blocks)


def _block_bytes(layout: SlotLayout) -> int:
    """Of a block's place, its table with it."""
    return 8 * layout.strips + layout.payload_bytes
