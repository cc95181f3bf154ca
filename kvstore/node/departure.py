"""What a node does before it leaves: others take the blocks that nobody else has, the best first.

It takes no new blocks from then on, and serves reads until it ends. What it lacks it fetches for
them as before: to compute that costs a reader more than what makes room for it here is worth. A
block goes after what stands before it, and to a node that has that already, where there is one. A
node that is full takes what is worth more than what it would lose; one that is late is asked again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.core.chains import Part, parts
from kvstore.core.lifecycle import Owner
from kvstore.core.replica_choice import Candidate, choose
from kvstore.limits import MOVE_OUT_BLOCKS_MAX, TAKE_BLOCKS_MAX
from kvstore.node.replicas import Replicas
from kvstore.node.store import Store
from kvstore.node.whereabouts import Whereabouts
from kvstore.telemetry import Telemetry

_TRIES = 2  # nodes that are offered a block
_LOOKED_AT = 4_096  # blocks between two turns of others
_PAUSE_SECONDS = 0.5  # until those that did not answer are asked again


@dataclass(slots=True)
class Progress:
    """How far it is, in blocks; see MoveOutReply in proto/moonpool/v1/admin.proto."""

    blocks: int = 0
    elsewhere: int = 0
    moved: int = 0
    left: int = 0
    nodes: int = 0


class Departure:
    """The moving out of one node."""

    def __init__(
        self,
        store: Store,
        replicas: Replicas,
        whereabouts: Whereabouts,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._store, self._index = store, store.blocks.index
        self._replicas, self._whereabouts = replicas, whereabouts
        self._clock, self._counters = clock, counters

    async def move_out(self, seconds: float) -> AsyncGenerator[Progress, None]:
        """Have others take blocks until all are looked after, or the time is over; how far it is
        after each step. The store is draining already: nothing new comes meanwhile."""
        deadline = self._clock.now() + seconds
        keys = await self._worthiest()
        so_far = Progress(blocks=len(keys), left=len(keys), nodes=len(self._replicas.candidates()))
        yield so_far
        while keys:
            left, late, awaited = list[bytes](), set[str](), False
            for at in range(0, len(keys), TAKE_BLOCKS_MAX):
                candidates = self._replicas.candidates()
                awaited |= self._replicas.awaited(late)
                if self._clock.now() >= deadline or not (candidates or awaited):
                    return
                some = keys[at : at + TAKE_BLOCKS_MAX]
                lone = await self._lone(some, candidates)
                moved = await self._move(lone, candidates, deadline, late)
                self._counters.add("moved_blocks", len(moved))
                so_far.nodes = max(so_far.nodes, len(candidates))
                so_far.elsewhere += len(some) - len(lone)
                so_far.moved += len(moved)
                so_far.left = so_far.blocks - so_far.elsewhere - so_far.moved
                yield so_far
                left += [key for key in lone if key not in moved]
            if not (awaited or self._replicas.awaited(late)):
                return
            keys = left  # those whose turn it was when a node was late
            await self._clock.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - self._clock.now())))

    async def _worthiest(self) -> list[bytes]:
        """Listed blocks by their worth; of very many the best. What stands before a block was used
        when it was, and is worth as much; where it is not, it goes along all the same. Of blocks
        that nobody used since the start those go together that came together."""
        best: list[tuple[float, int, int, bytes]] = []
        for i, key in enumerate(self._index.keys(lambda owner, tenant: True)):
            slot = self._index.peek(key)
            if slot is not None and slot.listed:
                one = (*self._index.worth(slot), slot.generation, key)
                if len(best) < MOVE_OUT_BLOCKS_MAX:
                    heapq.heappush(best, one)
                else:
                    heapq.heappushpop(best, one)
            if i % _LOOKED_AT == 0:
                await self._clock.sleep(0)
        line = list[bytes]()
        while best:
            some = min(len(best), _LOOKED_AT)
            line += [heapq.heappop(best)[-1] for _ in range(some)]
            await self._clock.sleep(0)
        line.reverse()
        return line

    async def _lone(self, keys: Sequence[bytes], candidates: Sequence[Candidate]) -> list[bytes]:
        """Those that no node lists which stays."""
        staying = {one.node_id for one in candidates}
        holders = await self._whereabouts.holders(keys)
        tiers = [found for node, found in holders.items() if node in staying]
        return [key for i, key in enumerate(keys) if not any(found[i] for found in tiers)]

    async def _move(
        self,
        keys: Sequence[bytes],
        candidates: Sequence[Candidate],
        deadline: float,
        late: set[str],
    ) -> set[bytes]:
        groups, moved = parts(self._index.peek, keys), set[bytes]()
        holding = await self._replicas.holding(groups)
        ranked = dict[bytes, list[Candidate]]()
        for part in groups:
            near = holding[part.first]
            ranked[part.first] = choose(part.first, candidates, _TRIES, {}, near)
            await self._clock.sleep(0)  # there may be a thousand, and readers wait
        for one in range(_TRIES):
            batches: dict[tuple[str, tuple[str, Owner]], list[Part]] = {}
            for part in groups:
                if one < len(ranked[part.first]) and not moved.issuperset(part.keys):
                    to = (ranked[part.first][one].node_id, (part.tenant, part.owner))
                    batches.setdefault(to, []).append(part)
            left = deadline - self._clock.now()
            offers = [self._offer(*to, some, left, late) for to, some in batches.items()]
            for has in await asyncio.gather(*offers):
                moved |= has
        return moved & set(keys)

    async def _offer(
        self,
        node_id: str,
        whose: tuple[str, Owner],
        some: Sequence[Part],
        seconds: float,
        late: set[str],
    ) -> set[bytes]:
        """Those that the node has at the end, of these and of what stands before them."""
        held = [
            slot
            for part in some
            for key in part.line
            if (slot := self._index.peek(key)) is not None
        ]
        line, worth = [slot.key for slot in held], [self._index.worth(slot)[0] for slot in held]
        has = await self._replicas.offer(
            node_id, whose, line, worth=worth, seconds=seconds, late=late
        )
        return {key for key, one in zip(line, has, strict=True) if one}
