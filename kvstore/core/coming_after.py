"""Blocks that stand alone and yet come after another in a prompt, as their writer says: each makes
room before the one it comes after, which is of use without it. It is found whatever becomes of
that.

The link is of one node and one run: it is made where both are held when the later one is, and ends
with the earlier one. Since that one was held first there is no ring.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.core.lifecycle import Slot


def follow(slot: Slot, before: Slot | None) -> None:
    """A block that is held from now on, and the one it comes after, if that is held."""
    if before is None:
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
