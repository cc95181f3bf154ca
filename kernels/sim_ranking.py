"""Which block of a simulated host goes next: `kvstore.core.ranking`, with its `rival` and what is
known of blocks that are `gone`, of many hosts at once and in compiled code.

Here every block that is held is listed, and leaves are at hand by kind and tier with nobody among
them who was one once. A block's kind and stamp are its place there and in lists: whoever changes
these takes it out before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .inner import inner
from .keeping import (
    AGAIN,
    CREDIT_SHARE,
    REMEMBERED_MAX,
    SLACK,
    TICK,
)
from .sim_known import BY_LRU, GONE, NONE, SSD, unknown
from .sim_leaves import insert, take_out
from .sim_life import KINDS, age, lose, pass_tick, use, wait
from .sim_lists import BY_LRU as IN_LRU
from .sim_lists import ITS_OWN, link_newest, unlink


@inner
def _tree(c: Any, entry: Any) -> Any:
    one = c.entries[entry]
    return (one.host * KINDS + one.kind) * 2 + (one.state >> SSD & 1)


@inner
def leaf(c: Any, entry: Any) -> None:
    """Nothing stands behind it."""
    insert(c.leaves, c.below, c.entries, _tree(c, entry), entry)


@inner
def no_leaf(c: Any, entry: Any) -> None:
    """Something does, or it is on its way out or to another place."""
    take_out(c.leaves, c.below, c.entries, _tree(c, entry), entry)


@inner
def copies(c: Any, host: Any, kind: Any) -> Any:
    """The list of what is in DRAM and on SSD."""
    return 2 * len(c.hosts) + host * KINDS + kind


@inner
def worth(c: Any, entry: Any) -> Any:
    one = c.entries[entry]
    if not c.hosts[one.host].pays:
        return 0.0
    return c.lives.worth[one.host, one.kind, age(c.lives, one.host, one.at // TICK)]


@inner
def sooner(c: Any, one: Any, other: Any) -> Any:
    """Whether it goes before the other one, which may be NONE."""
    if other == NONE:
        return True
    mine, its = worth(c, one), worth(c, other)
    return mine < its or (mine == its and c.entries[one].stamp < c.entries[other].stamp)


@inner
def coldest(c: Any, host: Any, tier: Any, bare: Any) -> Any:
    """The leaf of a tier that goes first; `bare` is one that is not among them yet, or NONE."""
    least = np.int32(NONE)
    for kind in range(KINDS):
        tree = (host * KINDS + kind) * 2 + tier
        oldest, newest = c.leaves[tree].oldest, c.leaves[tree].newest
        if bare != NONE and c.entries[bare].kind == kind:
            if oldest == NONE or c.entries[bare].stamp < c.entries[oldest].stamp:
                oldest = bare
            if newest == NONE or c.entries[bare].stamp > c.entries[newest].stamp:
                newest = bare
        if oldest == NONE:
            continue
        if sooner(c, oldest, least):
            least = oldest
        if newest != oldest and sooner(c, newest, least):
            least = newest
    return least


@inner
def _judge(c: Any, host: Any, found: Any, by_lru: Any) -> None:
    """A block is used, and was there or not, and would have been with LRU or not."""
    one = c.hosts[host]
    one.credit += found
    if by_lru:
        one.credit -= 1 - SLACK
    most = max(2 * AGAIN, c.lists[host].size / CREDIT_SHARE)
    one.credit = min(one.credit, most)
    one.pays = one.credit > (0.0 if one.pays else AGAIN)


@inner
def used(c: Any, entry: Any, found: Any) -> None:
    """It is used now, and was there or not."""
    one = c.entries[entry]
    host, by_lru = one.host, one.state & BY_LRU != 0
    if found or by_lru:  # of what neither has, nobody has anything to say
        _judge(c, host, found, by_lru)
    if one.uses:
        use(c.lives, host, one.kind, one.at // TICK)
    c.hosts[host].uses += 1
    if c.hosts[host].uses % TICK == 0:
        pass_tick(c.lives, host)
    one.uses += 1
    one.at = c.hosts[host].uses
    one.kind = 0
    while one.kind < KINDS - 1 and 2 << one.kind <= one.uses:
        one.kind += 1
    wait(c.lives, host, one.kind)


@inner
def touched(c: Any, entry: Any) -> None:
    one = c.entries[entry]
    c.hosts[one.host].stamp += 1
    one.stamp = c.hosts[one.host].stamp
    if one.state & BY_LRU:
        unlink(c.lists, c.links[IN_LRU], one.host, entry)
    one.state |= BY_LRU
    link_newest(c.lists, c.links[IN_LRU], one.host, entry)


@inner
def went(c: Any, entry: Any) -> None:
    """It is held no more, and remembered."""
    one = c.entries[entry]
    host, hosts = one.host, len(c.hosts)
    one.state |= GONE
    link_newest(c.lists, c.links[ITS_OWN], hosts + host, entry)
    c.hosts[host].held -= 1
    while c.lists[host].size > c.hosts[host].held:
        last = c.lists[host].oldest
        unlink(c.lists, c.links[IN_LRU], host, last)
        c.entries[last].state &= ~BY_LRU
        unknown(c, last)
    while c.lists[hosts + host].size > max(REMEMBERED_MAX, c.hosts[host].held):
        _forget_oldest(c, host)


@inner
def back(c: Any, entry: Any) -> None:
    """It is held again, if it was and is remembered."""
    one = c.entries[entry]
    if one.state & GONE:
        unlink(c.lists, c.links[ITS_OWN], len(c.hosts) + one.host, entry)
        one.state &= ~GONE


@inner
def _forget_oldest(c: Any, host: Any) -> None:
    """What went the longest ago will not be recognised when it comes again."""
    entry = c.lists[len(c.hosts) + host].oldest
    one = c.entries[entry]
    back(c, entry)
    if one.uses:
        lose(c.lives, host, one.kind, one.at // TICK)
    one.uses, one.at, one.kind = 0, 0, 0
    unknown(c, entry)


@inner
def forget_one(c: Any, host: Any) -> Any:
    """Whatever went the longest ago here, or else at the next host; False if nobody remembers."""
    hosts = len(c.hosts)
    for i in range(hosts):
        some = (host + i) % hosts
        if c.lists[hosts + some].size:
            _forget_oldest(c, some)
            return True
    return False
