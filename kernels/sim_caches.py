"""What hosts of a simulated pool keep, in DRAM and on SSD, and what goes: as nodes have it.

A block that is stored is in DRAM and, if it is worth what it would displace, on SSD too. Room in
DRAM is made by copies of what is on SSD, then by blocks that are lost with it; on SSD by blocks
that are lost, from DRAM too. What goes is worth least, as `.sim_ranking` says, and nothing that
stays stands behind what is lost: what a host has of a prompt is a prefix of it.

The nodes' own are `kvstore.core.room` and `placement`. Here all blocks are of one size and tenant,
nothing is pinned, and writing takes no time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .inner import BORROWED, inner
from .keeping import GIFT, ONE_USE
from .sim_known import (
    BY_LRU,
    COMING,
    DRAM,
    GONE,
    HELD,
    NONE,
    SSD,
    STORES,
    TAKEN,
    find,
    know,
    mark,
    unknown,
    unmark,
)
from .sim_leaves import empty as empty_tree
from .sim_life import KINDS, begin
from .sim_lists import ITS_OWN, link_newest, unlink
from .sim_lists import empty as empty_list
from .sim_look import has
from .sim_ranking import (
    back,
    coldest,
    copies,
    forget_one,
    leaf,
    no_leaf,
    sooner,
    touched,
    used,
    went,
    worth,
)

_BOTH = 1 << DRAM | 1 << SSD


@inner
def _held(c: Any, host: Any, blocks: Any) -> Any:
    """How many leading blocks a host has, in whatever tier."""
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high) // 2
        if has(c, host, DRAM, blocks[middle]) or has(c, host, SSD, blocks[middle]):
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _copied(c: Any, entry: Any) -> None:
    """It is in DRAM and on SSD now, or was used there."""
    one = c.entries[entry]
    link_newest(c.lists, c.links[ITS_OWN], copies(c, one.host, one.kind), entry)


@inner
def _not_copied(c: Any, entry: Any) -> None:
    one = c.entries[entry]
    unlink(c.lists, c.links[ITS_OWN], copies(c, one.host, one.kind), entry)


@inner
def _evict(c: Any, entry: Any) -> Any:
    """A leaf that is among the leaves no more is lost. What was bared by that, or NONE."""
    one = c.entries[entry]
    before, bare = one.before, np.int32(NONE)
    if one.state & HELD == _BOTH:
        _not_copied(c, entry)
    for tier in (DRAM, SSD):
        if one.state & (1 << tier):
            unmark(c, entry, tier)
    one.before = NONE
    if before != NONE:
        c.entries[before].behind -= 1
        if c.entries[before].behind == 0:
            bare = before
    went(c, entry)
    return bare


@inner
def _coldest_copy(c: Any, host: Any, store: Any) -> Any:
    """The copy that goes first, of those that are no part of a store."""
    least = np.int32(NONE)
    for kind in range(KINDS):
        some = c.lists[copies(c, host, kind)]
        for end in range(2):
            one = some.newest if end else some.oldest
            while one != NONE and c.entries[one].spared == store:
                one = c.links[ITS_OWN, one, end]
            if one != NONE and one != least and sooner(c, one, least):
                least = one
    return least


@inner
def _make_room(c: Any, host: Any, wanted: Any, store: Any) -> Any:
    """Room in DRAM for so many, as far as it can be made without what is part of this store."""
    room, bare = c.most[host, DRAM] - c.sizes[host, DRAM], np.int32(NONE)
    copied = c.most[host, SSD] > 0
    while room < wanted:
        if copied:
            entry = _coldest_copy(c, host, store)
            copied = entry != NONE
            if copied:
                _not_copied(c, entry)
                unmark(c, entry, DRAM)
                room += 1
                continue
        entry = coldest(c, host, DRAM, bare)
        if entry == NONE:
            break
        # Most of what goes is a prompt from its end to its start: what was bared is put among the
        # leaves only if it does not go right away.
        if entry != bare:
            no_leaf(c, entry)
            if bare != NONE:
                leaf(c, bare)
        bare = _evict(c, entry)
        room += 1
        if bare != NONE and c.entries[bare].spared == store:
            bare = np.int32(NONE)  # there is to be something behind it
        elif bare != NONE and c.entries[bare].state & (1 << SSD):
            leaf(c, bare)
            bare = np.int32(NONE)
    if bare != NONE:
        leaf(c, bare)
    return min(room, wanted)


@inner
def _write(c: Any, entry: Any) -> None:
    """What is in DRAM alone is written to SSD too, if there is room or it is worth it."""
    one = c.entries[entry]
    host = one.host
    if c.sizes[host, SSD] >= c.most[host, SSD]:
        gone = coldest(c, host, SSD, np.int32(NONE))
        if gone == NONE or worth(c, entry) < worth(c, gone):
            return
        no_leaf(c, gone)
        bare = _evict(c, gone)
        if bare != NONE:
            leaf(c, bare)
    if one.behind == 0:
        no_leaf(c, entry)
    mark(c, entry, SSD)
    if one.behind == 0:
        leaf(c, entry)
    _copied(c, entry)


@njit(**BORROWED)
def use(c: Any, host: Any, blocks: Any) -> None:
    """Those of these leading blocks of a prompt that a host has are used now, its start last."""
    count = _held(c, host, blocks)
    if count == 0:
        return
    deepest = find(c, host, blocks[count - 1])
    if c.entries[deepest].behind == 0:
        no_leaf(c, deepest)
    again, entry = max(c.hosts[host].held // ONE_USE, count), deepest
    for _ in range(count):
        one = c.entries[entry]
        if one.state & HELD == _BOTH:
            _not_copied(c, entry)
        if c.hosts[host].uses - one.at > again:
            used(c, entry, True)
        entry = one.before
    entry = deepest
    for _ in range(count):
        touched(c, entry)
        if c.entries[entry].state & HELD == _BOTH:
            _copied(c, entry)
        entry = c.entries[entry].before
    if c.entries[deepest].behind == 0:
        leaf(c, deepest)
    if c.most[host, SSD] == 0:
        return
    entry = deepest
    for _ in range(count):
        before = c.entries[entry].before
        if c.entries[entry].state & HELD == 1 << DRAM:
            _write(c, entry)
        entry = before


@njit(**BORROWED)
def keep(c: Any, host: Any, blocks: Any) -> Any:
    """A host is to have these leading blocks of a prompt in DRAM. How many came there."""
    if c.most[host, DRAM] == 0 or len(blocks) == 0:
        return 0
    count = _held(c, host, blocks)
    deepest = find(c, host, blocks[count - 1]) if count else np.int32(NONE)
    read = 0  # of those that are there, from SSD
    c.numbers[STORES] += 1
    store = c.numbers[STORES]
    if count:
        c.entries[deepest].spared = store
    if c.most[host, SSD]:
        entry = deepest
        for _ in range(count):
            c.entries[entry].spared = store
            read += c.entries[entry].state & HELD == 1 << SSD
            entry = c.entries[entry].before
    wanted = read + len(blocks) - count
    if wanted == 0:
        return 0
    if count and c.entries[deepest].behind == 0:
        no_leaf(c, deepest)
    room = _make_room(c, host, wanted, store)
    _read(c, deepest, count, read, min(read, room))
    last, came = deepest, min(read, room)
    while came < room:
        entry = _store(c, host, blocks[count + came - read], last)
        if entry == NONE:
            break
        last = entry
        came += 1
    entry = last
    for _ in range(came - read):
        touched(c, entry)
        entry = c.entries[entry].before
    if last != NONE and c.entries[last].behind == 0:
        leaf(c, last)
    if c.most[host, SSD]:
        for i in range(count, count + came - read):
            entry = find(c, host, blocks[i])
            if c.entries[entry].state & HELD == 1 << DRAM:
                _write(c, entry)
    return came


@inner
def _read(c: Any, deepest: Any, count: Any, from_ssd: Any, some: Any) -> None:
    """Of so many blocks so many are on SSD alone, of which the first `some` come to DRAM."""
    entry, left = deepest, from_ssd
    for _ in range(count):
        if c.entries[entry].state & HELD == 1 << SSD:
            if left <= some:
                mark(c, entry, DRAM)
                _copied(c, entry)
            left -= 1
        entry = c.entries[entry].before


@inner
def _store(c: Any, host: Any, block: Any, before: Any) -> Any:
    """A block comes to be held in DRAM, in room that was made for it; NONE where that many are
    known that no more can be."""
    entry = know(c, host, block)
    while entry == NONE and forget_one(c, host):
        entry = know(c, host, block)
    if entry == NONE:
        return entry
    back(c, entry)
    one = c.entries[entry]
    one.before, one.spared = before, c.numbers[STORES]
    if before != NONE:
        c.entries[before].behind += 1
    mark(c, entry, DRAM)
    c.hosts[host].held += 1
    used(c, entry, False)
    return entry


@njit(**BORROWED)
def empty_host(c: Any, host: Any) -> None:
    """A host lost all that it had and knew."""
    hosts = len(c.hosts)
    for entry in range(c.numbers[TAKEN]):
        one = c.entries[entry]
        if one.host != host or not one.state & (HELD | BY_LRU | GONE):
            continue
        for tier in (DRAM, SSD):
            if one.state & (1 << tier):
                unmark(c, entry, tier)
        one.state &= 1 << COMING
        one.before, one.behind, one.uses, one.at, one.kind = NONE, 0, 0, 0, 0
        unknown(c, entry)
    empty_list(c.lists, host)
    empty_list(c.lists, hosts + host)
    for kind in range(KINDS):
        empty_list(c.lists, copies(c, host, kind))
        empty_tree(c.leaves, (host * KINDS + kind) * 2 + DRAM)
        empty_tree(c.leaves, (host * KINDS + kind) * 2 + SSD)
    fresh = c.hosts[host]
    fresh.held, fresh.stamp, fresh.uses, fresh.credit, fresh.pays = 0, 0, 0, GIFT, 1
    begin(c.lives, host)
