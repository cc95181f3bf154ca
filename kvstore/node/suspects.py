"""Blocks whose bytes a reader found to be wrong: the node looks itself, and drops what is damaged.

Whoever reads may name any of its blocks, so to look is bounded: a slot once a call, one slot at a
time for all callers, with turns of the node's loop for others between. Who was answered may store
them anew; where a call ends by its deadline the rest is the scrubber's, or whose who reads it next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvstore.core.lifecycle import Slot, State
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import LayoutOf


class Suspects:
    """Looks at slots that are under suspicion."""

    def __init__(self, blocks: Blocks, layout_of: LayoutOf) -> None:
        self._blocks, self._layout_of = blocks, layout_of
        self._looking = asyncio.Lock()

    async def look_at(self, slots: Sequence[Slot]) -> None:
        """Each of these has been looked at once this returns.

        They are held until then. Of none that was dropped before there is anything to say."""
        doubted = [slot for slot in dict.fromkeys(slots) if slot.state is State.SEALED]
        for slot in doubted:
            slot.moves += 1
        try:
            for slot in doubted:
                async with self._looking:
                    self._blocks.examine(slot, self._layout_of(slot.owner))
                    await asyncio.sleep(0)
        finally:
            for slot in doubted:
                slot.moves -= 1
            self._blocks.settle_all(doubted)
