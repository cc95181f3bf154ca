"""A node that lends HBM, without its process: the payload of a slot there lies beside its head, in
the arena, so a copy down is one of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, Tier
from kvstore.node.from_hbm import FromHbm
from kvstore.node.hbm import Hbm
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from kvstore.node.threads import Threads
from tests.node.rig import LARGE, SMALL, TOKENS, Rig, prompt

SECONDS = 10.0
PER_SLAB = 4  # of SMALL
LAYOUTS = {SMALL.owner: SMALL.layout, LARGE.owner: LARGE.layout}


class Lender(Rig):
    """A store with HBM and what serves it; its callers reach HBM unless they say otherwise."""

    def __init__(self, slabs: int = 8, hbm_slabs: int = 4) -> None:
        super().__init__(slabs, hbm_slabs)
        self.copies: list[tuple[int, int, int]] = []
        self.threads, self.writing = Threads(), self.session()
        self.copying = asyncio.Event()
        self.copying.set()

    def begin(self) -> None:
        """On the loop that is to serve it."""
        read = FromHbm(self.blocks.view, self.blocks.heads, self.copy).read
        self.hbm = Hbm(self.blocks, read, LAYOUTS.__getitem__, self.threads, self.clock)

    def copy(self, here: int, there: int, size: int) -> None:
        self.copies.append((here, there, size))
        self.arena.view[there : there + size] = self.arena.view[here : here + size]

    def put_some(
        self, number: int, blocks: int = PER_SLAB, place: Place = SMALL, reach: Tier = Tier.HBM
    ) -> list[Slot]:
        chain = prompt(place, blocks * TOKENS, start=1_000 * number)
        return self.put(self.writing, place, chain, reach=reach)

    def keys(self, number: int, blocks: int = PER_SLAB) -> list[bytes]:
        chain = prompt(SMALL, blocks * TOKENS, start=1_000 * number)
        return self.store.keys("default", SMALL, chain.hashes)

    def tiers(self, keys: list[bytes]) -> list[Tier | None]:
        found = [self.blocks.index.held(key) for key in keys]
        return [None if slot is None else slot.tier for slot in found]

    def opened(self, keys: list[bytes], reach: Tier) -> list[Opened | Miss]:
        return self.store.open_stored(self.writing, SMALL, keys, reach=reach)

    def count(self, name: str) -> int:
        return self.counters.totals().get(name, 0)


def lent(story: Callable[[Lender], Awaitable[None]], *, serve: bool = True, **sizes: int) -> None:
    rig = Lender(**sizes)

    async def told() -> None:
        rig.begin()
        serving = asyncio.create_task(rig.hbm.serve()) if serve else None
        try:
            async with asyncio.timeout(SECONDS):
                await story(rig)
            assert serving is None or not serving.done(), "it serves on"
        finally:
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            rig.threads.shutdown()

    asyncio.run(told())
    rig.store.check()
