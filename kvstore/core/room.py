"""Which blocks make room in a tier: the coldest, all chosen before one goes.

In DRAM those that are on SSD too go first, the least recently used before others: they only lose a
copy. Any other is lost, so it goes only when nothing that stays stands behind it. One that leaves
SSD goes from DRAM too: what was acknowledged as durable is so for as long as the node has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from kvstore.core.lifecycle import Owner, Slot, State, Tier
from kvstore.core.slabs import Slab, Slabs


def copies(
    copied: Iterable[Slot], owner: Owner, short: int, spared: Collection[bytes]
) -> list[Slot]:
    """Up to `short` DRAM slots of the owner's blocks that are on SSD too; oldest first."""
    free = (
        slot for slot in copied if slot.owner == owner and not slot.held and slot.key not in spared
    )
    return list(islice(free, short))


def lost(slabs: Slabs, coldest: Iterable[Slot], short: int) -> list[Slot]:
    """Up to `short` slots of the tier whose blocks are lost with them. `coldest` is as the index
    gives it: each block after all that stand behind it.

    One in a retired slab would make no room: it stays, and keeps no other.
    """
    chosen: list[Slot] = []
    rooted: set[bytes] = set()  # blocks with something behind them that stays
    for slot in coldest:
        here = slot if slot.tier is slabs.tier else slot.twin
        if here is not None and slabs.retired(here):
            continue
        copied = here is not None and here.twin is not None
        if here is None or here.held or slot.key in rooted or (copied and slabs.tier is Tier.DRAM):
            rooted.add(slot.parent)
            continue
        chosen.append(here)
        if len(chosen) == short:
            break
    return chosen


def coldest_slabs(slabs: Slabs, owner: Owner, coldest: Iterable[Slot], count: int) -> list[Slab]:
    """Up to `count` slabs of other owners that can be emptied now, by their coldest blocks."""
    found: dict[int, Slab] = {}
    looked_at: set[int] = set()
    for slot in coldest:
        here = slot if slot.tier is slabs.tier else slot.twin
        if here is None or here.owner == owner:
            continue
        slab = slabs.slab_of(here)
        if slab.retired or slab.number in looked_at:
            continue
        looked_at.add(slab.number)
        if all(map(_may_go, slab.slots.values())):
            found[slab.number] = slab
            if len(found) == count:
                break
    return list(found.values())


def _may_go(slot: Slot) -> bool:
    return slot.state is State.SEALED and not slot.held
