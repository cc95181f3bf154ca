"""Which blocks every host of a simulated pool knows, and for each block the hosts that have it, as
bits: a table of pairs of block and host, of bounded size.

A host knows a block that it holds, that is computed there, that plain LRU would hold there, or
that is gone and still remembered. A block's bits lie in a row that it has while anybody has the
block, so memory is bounded by what the pool holds and not by what was ever asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from . import sim_life
from .inner import BORROWED, inner
from .keeping import GIFT, REMEMBERED_MAX
from .sim_leaves import trees
from .sim_life import KINDS, Lives
from .sim_lists import lists

DRAM, SSD, COMING = range(3)  # what a bit says: in that tier of the host, or being computed there
PLANES = 3
NONE = -1
BY_LRU, GONE = 1 << PLANES, 1 << (PLANES + 1)  # what else a host may know of a block
HELD = 1 << DRAM | 1 << SSD
WORD = 64
_UNEVEN = 8  # times its share of all uses that a host may see before it learns less of long waits

Words = NDArray[np.uint64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Records = NDArray[np.void]

ENTRY = np.dtype(
    [
        ("block", np.int32),
        ("host", np.int32),
        ("state", np.int32),  # bits by plane, BY_LRU, GONE; 0 for one that is free
        ("prompts", np.int32),  # that compute it
        ("before", np.int32),  # the entry of the block before it, while it is held; NONE
        ("behind", np.int32),  # held blocks that it stands before
        ("kind", np.int32),
        ("uses", np.int32),  # of which something is known
        ("stamp", np.int64),  # of the last touch, unique at a host
        ("at", np.int64),  # the host's count of uses, at its last
        ("spared", np.int64),  # the store that it is part of
    ],
    align=True,
)
HOST = np.dtype(
    [
        ("held", np.int64),  # blocks, in whatever tier
        ("stamp", np.int64),
        ("uses", np.int64),
        ("credit", np.float64),
        ("pays", np.int64),  # 1: to keep what is worth most; 0: does as LRU does
    ],
    align=True,
)


class Caches(NamedTuple):
    """What the hosts hold and know."""

    row_of: Ints  # [block]: its row; NONE
    bits: Words  # [row, PLANES, words]
    users: Ints  # [row]: bits that are set
    free_rows: Ints  # a stack
    table: Ints  # 1 + entry by (block, host), open addressing; 0
    entries: Records  # of ENTRY
    free_entries: Ints  # a stack of those that were taken once
    links: Ints  # [2, entry, 2]: in the list by LRU, and in the one of its own
    below: Ints  # [entry, 2]: in the tree of leaves
    lists: Records  # by LRU [host], of what is gone [host], in DRAM and on SSD [host, KINDS]
    leaves: Records  # [host, KINDS, (DRAM, SSD)]
    hosts: Records  # of HOST
    sizes: Longs  # [host, PLANES]: blocks
    most: Longs  # [host, (DRAM, SSD)]
    lives: Lives
    numbers: Longs  # by the names below


# Of the two stacks; entries that were ever taken; stores that there were; pairs that are coming.
FREE_ROWS, FREE_ENTRIES, TAKEN, STORES, COME, COME_MOST = range(6)


def caches(blocks: int, dram: Longs, ssd: Longs, coming: int, uses: int) -> Caches:
    """Empty ones, for blocks numbered below `blocks`, with the hosts' capacities in blocks. They
    are to see some such number of uses of blocks together.

    So many pairs of block and host may be `coming` at a time; more of them are not noted. Of what
    is gone each host remembers as much as a node, and all together as many as there are blocks.
    """
    count, words = len(dram), -(-len(dram) // WORD)
    held = np.minimum(dram, blocks).sum() + np.minimum(ssd, blocks).sum()
    gone = min(int(np.minimum(np.maximum(REMEMBERED_MAX, dram + ssd), blocks).sum()), blocks)
    entries = int(held) + gone + 2 * count + coming
    rows = min(int(held) + count + coming, blocks) + 1
    table = 1 << max(4, (2 * entries - 1).bit_length())
    hosts = np.zeros(count, HOST)
    hosts["credit"], hosts["pays"] = GIFT, 1
    return Caches(
        row_of=np.full(blocks, NONE, np.int32),
        bits=np.zeros((rows, PLANES, words), np.uint64),
        users=np.zeros(rows, np.int32),
        free_rows=np.arange(rows, dtype=np.int32),
        table=np.zeros(table, np.int32),
        entries=np.zeros(entries, ENTRY),
        free_entries=np.zeros(entries, np.int32),
        links=np.zeros((2, entries, 2), np.int32),
        below=np.zeros((entries, 2), np.int32),
        lists=lists((2 + KINDS) * count),
        leaves=trees(2 * KINDS * count),
        hosts=hosts,
        sizes=np.zeros((count, PLANES), np.int64),
        most=np.array([dram, ssd]).T.copy(),
        lives=sim_life.lives(count, _UNEVEN * (1 + uses // count)),
        numbers=np.array([rows, 0, 0, 0, 0, coming]),
    )


@inner
def _home(table: Any, block: Any, host: Any) -> Any:
    mixed = (np.uint64(block) << np.uint64(20) ^ np.uint64(host)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(24)) & (len(table) - 1)


@inner
def _place(c: Any, block: Any, host: Any) -> Any:
    """Where in the table an entry is, or would be."""
    at = _home(c.table, block, host)
    while c.table[at]:
        entry = c.table[at] - 1
        if c.entries[entry].block == block and c.entries[entry].host == host:
            break
        at = (at + 1) & (len(c.table) - 1)
    return at


@inner
def find(c: Any, host: Any, block: Any) -> Any:
    """What a host knows of a block; NONE."""
    return np.int32(c.table[_place(c, block, host)] - 1)


@inner
def know(c: Any, host: Any, block: Any) -> Any:
    """The same, of which nothing may be known yet; NONE where no more can be known."""
    at = _place(c, block, host)
    if c.table[at]:
        return np.int32(c.table[at] - 1)
    if c.numbers[FREE_ENTRIES]:
        c.numbers[FREE_ENTRIES] -= 1
        entry = c.free_entries[c.numbers[FREE_ENTRIES]]
    elif c.numbers[TAKEN] < len(c.entries):
        entry = np.int32(c.numbers[TAKEN])
        c.numbers[TAKEN] += 1
    else:
        return np.int32(NONE)
    c.table[at] = entry + 1
    one = c.entries[entry]
    one.block, one.host, one.prompts, one.before, one.behind = block, host, 0, NONE, 0
    one.uses, one.stamp, one.at, one.spared = 0, 0, 0, 0
    one.state, one.kind = 0, 0
    return entry


@inner
def unknown(c: Any, entry: Any) -> None:
    """It is known no more if nothing is known of it."""
    if c.entries[entry].state:
        return
    last = len(c.table) - 1
    hole = _place(c, c.entries[entry].block, c.entries[entry].host)
    behind = (hole + 1) & last
    while c.table[behind]:  # those behind it close up
        one = c.entries[c.table[behind] - 1]
        home = _home(c.table, one.block, one.host)
        if ((behind - home) & last) >= ((behind - hole) & last):
            c.table[hole] = c.table[behind]
            hole = behind
        behind = (behind + 1) & last
    c.table[hole] = 0
    c.free_entries[c.numbers[FREE_ENTRIES]] = entry
    c.numbers[FREE_ENTRIES] += 1


@inner
def mark(c: Any, entry: Any, plane: Any) -> None:
    """Its host has it, in that way."""
    one = c.entries[entry]
    one.state |= 1 << plane
    c.sizes[one.host, plane] += 1
    if c.row_of[one.block] == NONE:
        c.numbers[FREE_ROWS] -= 1
        c.row_of[one.block] = c.free_rows[c.numbers[FREE_ROWS]]
    row = c.row_of[one.block]
    c.users[row] += 1
    c.bits[row, plane, one.host // WORD] |= np.uint64(1) << np.uint64(one.host % WORD)


@inner
def unmark(c: Any, entry: Any, plane: Any) -> None:
    one = c.entries[entry]
    one.state &= ~(1 << plane)
    c.sizes[one.host, plane] -= 1
    row = c.row_of[one.block]
    c.bits[row, plane, one.host // WORD] &= ~(np.uint64(1) << np.uint64(one.host % WORD))
    c.users[row] -= 1
    if c.users[row] == 0:
        c.row_of[one.block] = NONE
        c.free_rows[c.numbers[FREE_ROWS]] = row
        c.numbers[FREE_ROWS] += 1


@njit(**BORROWED)
def expect(c: Any, host: Any, blocks: Any, more: Any) -> None:
    """One prompt more, or less (-1), computes these blocks at a host."""
    for block in blocks:
        entry = find(c, host, block)
        if more > 0 and (entry == NONE or not c.entries[entry].prompts):
            if c.numbers[COME] >= c.numbers[COME_MOST]:
                continue
            entry = know(c, host, block)
            if entry == NONE:
                continue
            c.numbers[COME] += 1
            mark(c, entry, COMING)
        if entry == NONE or not c.entries[entry].state & (1 << COMING):
            continue
        c.entries[entry].prompts += more
        if c.entries[entry].prompts <= 0:
            c.entries[entry].prompts = 0
            c.numbers[COME] -= 1
            unmark(c, entry, COMING)
            unknown(c, entry)
