"""Moves of a caller's memory, wherever it is: what lies in HBM goes through pinned host memory,
unless the transport takes it as it is.

Either way bytes are verified before any reaches a page in HBM.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.errors import Unavailable
from kvstore.kernels.pieces import Piece, Run
from kvstore.kernels.shapes import Geometry
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.kernel_terms import pages
from kvstore.transfer.protocol import Ahead, Ints, Mask, Memory, Slots, Transport
from kvstore.transfer.ucx_pieces import PiecesTaken

log = logging.getLogger(__name__)


class Staging(Protocol):
    """What `Memory.staging` is: `kernels.gpu.staging`, which says what each promises."""

    def gathered(self, run: Run, store: Callable[[Piece], None]) -> None: ...

    def scattered(self, run: Run, load: Callable[[Piece], Mask]) -> Mask: ...


def ahead(
    transport: Transport, layout: SlotLayout, count: int, memory: Memory, part: Fragment
) -> Ahead | None:
    """As `Transport.ahead`. None to HBM, where blocks arrive a piece at a time."""
    return None if memory.staging is not None else transport.ahead(layout, count, part)


def store(
    transport: Transport,
    layout: SlotLayout,
    slots: Slots,
    memory: Memory,
    starts: Ints,
    part: Fragment,
) -> None:
    """As `Transport.store`."""
    if memory.staging is None:
        transport.store(layout, slots, memory, starts, part)
        return
    with _on_device(memory):
        taken = transport.takes(layout, slots, memory, starts, part)
        if taken.any():
            try:
                transport.store(layout, slots.pick(taken), memory, starts[taken], part)
            except PiecesTaken:  # since it was asked
                taken[:] = False
        if taken.all():
            return
        slots, starts = slots.pick(~taken), starts[~taken]
        run = run_of(layout, memory, slots.tokens, starts, part)

        def put(piece: Piece) -> None:
            here, there = on_host(piece, run.geometry, part)
            transport.store(layout, slots.pick(piece.rows), here, there, part)

        staging: Staging = memory.staging
        staging.gathered(run, put)


def load(
    transport: Transport,
    layout: SlotLayout,
    slots: Slots,
    memory: Memory,
    starts: Ints,
    part: Fragment,
) -> Mask:
    """As `Transport.load`."""
    if memory.staging is None:
        return transport.load(layout, slots, memory, starts, part)
    with _on_device(memory):
        taken = transport.takes(layout, slots, memory, starts, part)
        good = np.zeros(len(slots), bool)
        if taken.any():
            try:
                good[taken] = transport.load(layout, slots.pick(taken), memory, starts[taken], part)
            except PiecesTaken:  # since it was asked
                taken[:] = False
        if taken.all():
            return good
        slots, starts = slots.pick(~taken), starts[~taken]
        run = run_of(layout, memory, slots.tokens, starts, part)

        def get(piece: Piece) -> Mask:
            here, there = on_host(piece, run.geometry, part)
            return transport.load(layout, slots.pick(piece.rows), here, there, part)

        staging: Staging = memory.staging
        good[~taken] = staging.scattered(run, get)
        return good


@contextmanager
def _on_device(memory: Memory) -> Iterator[None]:
    """A move of HBM. What fails on the GPU, as it does where engines have left no memory for a
    piece, is a failure of the pool: whoever asked does without."""
    try:
        yield
    except RuntimeError as error:  # torch's word for whatever CUDA says
        device = memory.staging.device
        log.warning("blocks are not moved to or from %s: %s", device, error)
        raise Unavailable(f"blocks are not moved to or from {device}: {error}") from error


def run_of(
    layout: SlotLayout,
    memory: Memory,
    tokens: npt.NDArray[np.int32],
    starts: Ints,
    part: Fragment,
) -> Run:
    """A part of blocks as they lie in memory in HBM: as the engine has them, whatever the codec."""
    sizes = (part.layers, part.heads, layout.block_tokens, layout.parts, layout.run_bytes)
    return Run(Geometry(*sizes), pages(memory, part), memory.block_table, tokens, starts)


def on_host(piece: Piece, geometry: Geometry, part: Fragment) -> tuple[Memory, Ints]:
    """The piece as a transport takes it, a page for each block, and where its blocks begin."""
    layer_bytes = geometry.kv_heads * geometry.strip_stride
    first = np.uint64(piece.host.ctypes.data)
    count = len(piece.host) // geometry.payload_bytes
    memory = Memory(
        layer_addresses=first
        + np.arange(geometry.layers, dtype=np.uint64) * np.uint64(layer_bytes),
        page_stride=geometry.payload_bytes,
        head_stride=geometry.strip_stride,
        token_stride=geometry.parts * geometry.run_bytes,
        part_stride=geometry.run_bytes,
        page_tokens=geometry.block_tokens,
        page_count=count,
        block_table=np.arange(count),
        heads=geometry.kv_heads,
        layer_first=part.layer_first,
        head_first=part.head_first,
        owners=(piece.host,),
    )
    return memory, np.arange(count) * geometry.block_tokens
