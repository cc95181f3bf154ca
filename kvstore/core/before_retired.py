"""Blocks in DRAM behind which only such are left as are in retired slabs of SSD.

Those make no room any more, so what stands before them would stay for ever. One may stand before
very many, and to find out takes a look at each: all are gone through once, and within bounds, since
other callers wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs

_BEHIND_MAX = 32_768  # blocks that are gone through, in a fifth of a second
_EACH_MIN = 8  # behind each one all the same: else some that stay would keep all others for ever


def before_retired(
    index: Index, ssd: Slabs, slots: Iterable[Slot], spared: Collection[bytes], gone: set[Slot]
) -> Iterator[Slot]:
    """Those of these slots in DRAM that may go, in this order, once others are `gone`. One behind
    which there is more than half of what may be gone through yet stays, and leaves that to others;
    one that little is behind is looked at in any case.
    """
    stay, clear, left = set(spared), set[bytes](), _BEHIND_MAX
    for slot in slots:
        if slot.key in stay:
            continue
        most = max(left // 2, _EACH_MIN)
        for passed, behind in enumerate(_behind(index, slot, clear), 1):
            left -= 1
            if passed > most or _keeps(ssd, behind, stay, gone):
                stay.add(slot.key)  # and so does all that stands before it
                break
        else:
            clear.add(slot.key)
            gone.add(slot)
            yield slot


def _behind(index: Index, slot: Slot, clear: Collection[bytes]) -> Iterator[Slot]:
    """Held blocks behind a slot, but for those that are clear, and what is behind them."""
    sleepers, todo = index.sleepers, [slot]
    while todo:
        one = todo.pop()
        for key in (*one.children, *map(sleepers.key, sleepers.behind(one.key))):
            if key in clear:
                continue
            behind = index.peek(key)
            assert behind is not None, "a child that is not held"
            yield behind
            todo.append(behind)


def _keeps(ssd: Slabs, behind: Slot, stay: Collection[bytes], gone: Collection[Slot]) -> bool:
    """Whether a block stays where it is, and keeps what is before it."""
    there = behind if behind.tier is Tier.SSD else behind.twin
    if behind.held or behind.key in stay or (behind is not there and behind not in gone):
        return True
    return there is not None and (there.held or not ssd.retired(there))
