"""Which blocks every host of a simulated pool has: least recently used lists of bounded size, one a
host and tier, and for each block the hosts that have it, as bits.

A block's bits lie in a row that it has while anybody has the block, so memory is bounded by what
the pool holds and not by what was ever asked for. A prompt's blocks are touched from its end to its
start: what is before a block is always younger than it, so blocks go from the ends of prompts, and
what a host has of a prompt is a prefix of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .inner import BORROWED, inner

DRAM, SSD, COMING = range(3)  # what a bit says: in that tier of the host, or being computed there
PLANES = 3
NONE = -1
_WORD = 64

Words = NDArray[np.uint64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


ENTRY = np.dtype(
    [
        ("block", np.int32),
        ("place", np.int32),  # its list
        ("prompts", np.int32),  # that compute it, of one that is COMING
        ("newer", np.int32),
        ("older", np.int32),
    ]
)
LIST = np.dtype(
    [("newest", np.int32), ("oldest", np.int32), ("size", np.int32), ("capacity", np.int32)]
)


class Caches(NamedTuple):
    """Lists of all hosts: that of a plane and host is number plane * hosts + host."""

    row_of: Ints  # [block]: its row; NONE
    bits: Words  # [row, PLANES, words]
    users: Ints  # [row]: entries of its block
    free_rows: Ints  # a stack
    table: Ints  # entry by (block, list), open addressing; NONE
    entries: NDArray[np.void]  # of ENTRY
    free_entries: Ints  # a stack
    lists: NDArray[np.void]  # of LIST
    tops: Longs  # of the two stacks: rows, entries


def caches(blocks: int, dram: Longs, ssd: Longs, coming: int) -> Caches:
    """Empty ones, for blocks numbered below `blocks`, with the hosts' capacities in blocks.

    So many pairs of block and host may be `coming` at a time; more of them are not noted.
    """
    hosts, words = len(dram), -(-len(dram) // _WORD)
    entries = int(min(dram.sum() + ssd.sum(), 2 * hosts * blocks)) + 2 * hosts + coming
    rows = min(entries, blocks) + 1
    table = 1 << max(4, (2 * entries - 1).bit_length())
    lists = np.zeros(PLANES * hosts, LIST)
    lists["newest"] = lists["oldest"] = NONE
    most = np.iinfo(np.int32).max
    lists["capacity"] = np.minimum(np.concatenate([dram, ssd, np.full(hosts, most)]), most)
    return Caches(
        row_of=np.full(blocks, NONE, np.int32),
        bits=np.zeros((rows, PLANES, words), np.uint64),
        users=np.zeros(rows, np.int32),
        free_rows=np.arange(rows, dtype=np.int32),
        table=np.full(table, NONE, np.int32),
        entries=np.zeros(entries, ENTRY),
        free_entries=np.arange(entries, dtype=np.int32),
        lists=lists,
        tops=np.array([rows, entries]),
    )


@inner
def _home(table: Any, block: Any, place: Any) -> Any:
    mixed = (np.uint64(block) << np.uint64(20) ^ np.uint64(place)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(24)) & (len(table) - 1)


@inner
def _slot(c: Any, block: Any, place: Any) -> Any:
    """Where in the table an entry is, or would be."""
    at = _home(c.table, block, place)
    while c.table[at] != NONE:
        entry = c.table[at]
        if c.entries[entry].block == block and c.entries[entry].place == place:
            break
        at = (at + 1) & (len(c.table) - 1)
    return at


@inner
def _unslot(c: Any, at: Any) -> None:
    """Take out what is at a place of the table; those behind it close up."""
    last = len(c.table) - 1
    hole, behind = at, (at + 1) & last
    while c.table[behind] != NONE:
        entry = c.table[behind]
        home = _home(c.table, c.entries[entry].block, c.entries[entry].place)
        if ((behind - home) & last) >= ((behind - hole) & last):
            c.table[hole] = entry
            hole = behind
        behind = (behind + 1) & last
    c.table[hole] = NONE


@inner
def _bear(c: Any, at: Any, block: Any, place: Any, host: Any, plane: Any) -> Any:
    """A new entry in a free place of the table; NONE where there are as many as there may be."""
    if c.tops[1] == 0 or (c.row_of[block] == NONE and c.tops[0] == 0):
        return NONE
    c.tops[1] -= 1
    entry = c.free_entries[c.tops[1]]
    c.entries[entry].block, c.entries[entry].place, c.entries[entry].prompts = block, place, 0
    c.table[at] = entry
    if c.row_of[block] == NONE:
        c.tops[0] -= 1
        c.row_of[block] = c.free_rows[c.tops[0]]
    row = c.row_of[block]
    c.users[row] += 1
    c.bits[row, plane, host // _WORD] |= np.uint64(1) << np.uint64(host % _WORD)
    c.lists[place].size += 1
    return entry


@inner
def _bury(c: Any, at: Any, host: Any, plane: Any) -> None:
    entry = c.table[at]
    block, place = c.entries[entry].block, c.entries[entry].place
    _unslot(c, at)
    c.free_entries[c.tops[1]] = entry
    c.tops[1] += 1
    row = c.row_of[block]
    c.bits[row, plane, host // _WORD] &= ~(np.uint64(1) << np.uint64(host % _WORD))
    c.users[row] -= 1
    if c.users[row] == 0:
        c.row_of[block] = NONE
        c.free_rows[c.tops[0]] = row
        c.tops[0] += 1
    c.lists[place].size -= 1


@inner
def _unlink(c: Any, entry: Any) -> None:
    place, newer, older = c.entries[entry].place, c.entries[entry].newer, c.entries[entry].older
    if newer == NONE:
        c.lists[place].newest = older
    else:
        c.entries[newer].older = older
    if older == NONE:
        c.lists[place].oldest = newer
    else:
        c.entries[older].newer = newer


@inner
def _link_newest(c: Any, entry: Any) -> None:
    place = c.entries[entry].place
    first = c.lists[place].newest
    c.entries[entry].newer, c.entries[entry].older = NONE, first
    if first == NONE:
        c.lists[place].oldest = entry
    else:
        c.entries[first].newer = entry
    c.lists[place].newest = entry


@njit(**BORROWED)
def has(c: Any, host: Any, plane: Any, block: Any) -> Any:
    row = c.row_of[block]
    if row == NONE:
        return False
    word = c.bits[row, plane, host // _WORD]
    return (word >> np.uint64(host % _WORD)) & np.uint64(1) != 0


@njit(**BORROWED)
def touch(c: Any, host: Any, plane: Any, blocks: Any) -> Any:
    """A host has these leading blocks of a prompt in a tier, and they were used now. How many of
    them came there by that."""
    place, came = plane * (len(c.lists) // PLANES) + host, 0
    if c.lists[place].capacity == 0:
        return 0
    for i in range(len(blocks) - 1, -1, -1):
        at = _slot(c, blocks[i], place)
        entry = c.table[at]
        if entry != NONE:
            _unlink(c, entry)
            _link_newest(c, entry)
            continue
        if c.lists[place].size >= c.lists[place].capacity:
            gone = c.lists[place].oldest
            _unlink(c, gone)
            _bury(c, _slot(c, c.entries[gone].block, place), host, plane)
            at = _slot(c, blocks[i], place)
        entry = _bear(c, at, blocks[i], place, host, plane)
        if entry != NONE:
            _link_newest(c, entry)
            came += 1
    return came


@njit(**BORROWED)
def empty_host(c: Any, host: Any) -> None:
    """A host lost all that it had."""
    hosts = len(c.lists) // PLANES
    for plane in (DRAM, SSD):
        place = plane * hosts + host
        while c.lists[place].oldest != NONE:
            gone = c.lists[place].oldest
            _unlink(c, gone)
            _bury(c, _slot(c, c.entries[gone].block, place), host, plane)


@njit(**BORROWED)
def expect(c: Any, host: Any, blocks: Any, more: Any) -> None:
    """One prompt more, or less (-1), computes these blocks at a host."""
    place = COMING * (len(c.lists) // PLANES) + host
    for one in blocks:
        at = _slot(c, one, place)
        entry = c.table[at]
        if entry == NONE:
            entry = _bear(c, at, one, place, host, COMING) if more > 0 else NONE
        if entry == NONE:
            continue
        c.entries[entry].prompts += more
        if c.entries[entry].prompts <= 0:
            _bury(c, at, host, COMING)


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
        lengths[word * _WORD + bit] = length
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
