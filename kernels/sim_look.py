"""What of a prompt hosts of a simulated pool have, read off their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, inner
from .sim_known import COMING, DRAM, NONE, SSD, WORD


@njit(**BORROWED)
def has(c: Any, host: Any, plane: Any, block: Any) -> Any:
    row = c.row_of[block]
    if row == NONE:
        return False
    word = c.bits[row, plane, host // WORD]
    return (word >> np.uint64(host % WORD)) & np.uint64(1) != 0


@njit(**BORROWED)
def leading(c: Any, host: Any, blocks: Any) -> Any:
    """How many leading blocks a host has in DRAM."""
    for i in range(len(blocks)):
        if not has(c, host, DRAM, blocks[i]):
            return i
    return len(blocks)


@inner
def _left(words: Any, word: Any, length: Any, lengths: Any) -> None:
    """Those of a word of hosts have so many blocks."""
    while words != 0:
        lowest = words & (~words + np.uint64(1))
        bit = np.int64(0)
        if lowest >> np.uint64(32):
            bit += 32
        for step in (16, 8, 4, 2, 1):
            if lowest >> np.uint64(bit + step):
                bit += step
        lengths[word * WORD + bit] = length
        words ^= lowest


@njit(**BORROWED)
def look(c: Any, blocks: Any, on: Any, found: Any) -> None:
    """How many leading blocks each host has: `found` of `.fleet`, whose engines are hosts of their
    own. `on` is room for three rows of words."""
    found.dram[:], found.local[:], found.coming[:] = 0, 0, 0
    words = c.bits.shape[2]
    on[:] = ~np.uint64(0)
    for i in range(len(blocks) + 1):
        row = c.row_of[blocks[i]] if i < len(blocks) else NONE
        any_left = np.uint64(0)
        for w in range(words):
            dram = c.bits[row, DRAM, w] if row != NONE else np.uint64(0)
            ssd = c.bits[row, SSD, w] if row != NONE else np.uint64(0)
            coming = c.bits[row, COMING, w] if row != NONE else np.uint64(0)
            now = on[0, w] & dram
            if i and now != on[0, w]:
                _left(on[0, w] & ~now, w, i, found.dram)
            on[0, w] = now
            either = on[1, w] & (dram | ssd)
            if i and either != on[1, w]:
                _left(on[1, w] & ~either, w, i, found.local)
            on[1, w] = either
            expected = on[2, w] & (dram | coming)
            if i and expected != on[2, w]:
                _left(on[2, w] & ~expected, w, i, found.coming)
            on[2, w] = expected
            any_left |= either | expected
        if any_left == 0:
            return
