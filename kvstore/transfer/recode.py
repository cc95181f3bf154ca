"""KV as it would be had it been stored and loaded again: what a codec does to it, without a pool.

Stored KV of a coded namespace can be held against computed KV only when both have been coded: a
codec moves every element, and in a manner that no mean over many of them takes away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.kernels import strips
from kvstore.kernels.pieces import Piece
from kvstore.layout import TABLE_OFFSET, Fragment, SlotLayout
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.protocol import Ints, Mask, Memory
from kvstore.transfer.staged import Staging, on_host, run_of


def recode(layout: SlotLayout, memory: Memory, blocks: int) -> None:
    """Code and decode, where they lie, the first `blocks` full blocks that `memory` holds.

    Raises `OutOfRange` where it has no room for so many. Of codec none nothing changes.
    """
    part, tokens = memory.fragment, np.full(blocks, layout.block_tokens, dtype=np.int32)
    starts = np.arange(blocks, dtype=np.int64) * layout.block_tokens
    memory.check(layout.check(part), starts, tokens)
    if layout.coding is None:
        return
    if memory.staging is None:
        _recode(layout, memory, starts, tokens, part)
        return
    # No processor of the host reads a GPU's memory: what lies there comes to it, and goes back.
    run = run_of(layout, memory, tokens, starts, part)
    coded: list[npt.NDArray[np.uint8]] = []

    def out(piece: Piece) -> None:
        _recode(layout, *on_host(piece, run.geometry, part), tokens[piece.rows], part)
        coded.append(piece.host.copy())

    def back(piece: Piece) -> Mask:
        piece.host[:] = coded.pop(0)
        return np.ones(piece.rows.stop - piece.rows.start, dtype=bool)

    staging: Staging = memory.staging
    staging.gathered(run, out)
    staging.scattered(run, back)


def _recode(
    layout: SlotLayout,
    memory: Memory,
    starts: Ints,
    tokens: npt.NDArray[np.int32],
    part: Fragment,
) -> None:
    """Of memory of the host."""
    slots = np.arange(len(starts), dtype=np.int64) * layout.slot_bytes
    arena = np.zeros(len(starts) * layout.slot_bytes, dtype=np.uint8)
    where = strips.Blocks(slots + layout.head_bytes, slots + TABLE_OFFSET, tokens, starts)
    sides = (geometry(layout), where, pages(memory, part), memory.block_table)
    strips.gather(arena, *sides, *span(part))
    good = strips.scatter(arena, *sides, *span(part))
    assert good.all(), "what was just hashed differs"
