"""Blocks that stand alone and yet come after another in a prompt, as their writer says: each makes
room before the one it comes after, which is of use without it. It is found whatever becomes of
that.

The link is of one node and one run: it is made where the earlier one is held when the later one
comes, and ends with it. Both stand alone: what has a parent may be hidden, or wait for this very
block. So nothing that is held waits for one that comes, and there is no ring.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.core.lifecycle import Slot


def follow(slot: Slot, before: Slot | None) -> None:
    """A block that is held from now on, and what it is to come after, if that is held."""
    if before is None or before.parent:
        slot.after = b""
    else:
        before.bears(slot.key)


def waiting_for(slot: Slot, held: Mapping[bytes, Slot]) -> set[bytes]:
    """Keys of the blocks behind one that goes which wait for it; others come after it no more."""
    waiting = set[bytes]()
    for key in slot.children:
        child = held.get(key)
        if child is not None and child.after:
            child.after = b""
        else:
            waiting.add(key)
    return waiting
