"""Copies of this node's blocks at other nodes: whom it asks to take them, and how far that came.

A node is asked to fetch, and nothing is pushed at it: it makes room as it sees fit and proves every
byte. What it does not take costs the copy and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import compress
from weakref import WeakValueDictionary

from kvstore.core.chains import Part, parts
from kvstore.core.lifecycle import Owner
from kvstore.core.replica_choice import Candidate, choose
from kvstore.core.turns import Places
from kvstore.errors import KVStoreError, Overloaded, Unavailable
from kvstore.limits import OFFERS_MAX, TAKE_BLOCKS_MAX, TAKE_SECONDS_MAX
from kvstore.node.peers import Peers, fails
from kvstore.node.store import Store
from kvstore.node.whereabouts import Whereabouts
from kvstore.telemetry import Telemetry
from kvstore.wire.v1 import directory_pb2 as pb

log = logging.getLogger(__name__)

SPARES = 2  # nodes that are asked in the place of those that do not take what they are offered
TOLD_MAX = 16  # nodes that are told at once what to drop: half a MiB for each, of a long prompt
_ANSWER_SECONDS = 1.0  # beyond the time that the other node takes blocks


class Replicas:
    """What this node has others take, and take away."""

    def __init__(
        self,
        store: Store,
        peers: Peers,
        whereabouts: Whereabouts,
        labels: Mapping[str, str],
        counters: Telemetry,
    ) -> None:
        self._store, self._peers, self._whereabouts = store, peers, whereabouts
        self._labels, self._counters = labels, counters
        self._free: dict[str, int] = {}  # bytes of each node that is known, as it last said
        # By node, for as long as somebody has it: each takes one batch of ours at a time.
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = Places(OFFERS_MAX)

    def candidates(self, *, durable: bool = False) -> list[Candidate]:
        """Nodes that may be asked to take blocks."""
        known = self._peers.known()
        there = {one.node_id for one in known}
        self._free = {node: free for node, free in self._free.items() if node in there}
        return [
            Candidate(
                one.node_id,
                (capacity := one.tiers.get("dram", 0)),
                min(self._free.get(one.node_id, capacity), capacity),
                one.labels,
            )
            for one in known
            if one.state == "serving" and (not durable or "ssd" in one.tiers)
        ]

    def awaited(self, late: Collection[str]) -> bool:
        """Whether one of these nodes, or one that is left alone now, may take more in a moment."""
        known = [one for one in self._peers.known() if one.node_id in late]
        return any(one.state == "serving" for one in (*known, *self._peers.resting()))

    async def copied(
        self, tenant: str, keys: Sequence[bytes], copies: int, durable: bool, seconds: float | None
    ) -> dict[bytes, int]:
        """See to it that so many nodes have these blocks; how many have each after that time, as
        far as it is known. What takes longer goes on; nothing that another node does raises."""
        have = dict.fromkeys(keys, 1)
        if copies < 2 or not have:
            return have
        if not self._places.try_take(tenant):
            log.info("%d puts' copies are on their way: these are not made", len(self._tasks))
            return have
        task = asyncio.create_task(self._copy(copies, durable, have))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._places.give_back(tenant))
        await asyncio.wait({task}, timeout=seconds)
        return dict(have)

    async def offer(
        self,
        node_id: str,
        whose: tuple[str, Owner],
        keys: Sequence[bytes],
        *,
        durable: bool = False,
        worth: Sequence[float] = (),
        seconds: float = math.inf,
        late: set[str] | None = None,
    ) -> list[bool]:
        """Have a node take blocks, each after what stands before it; which it has at the end. What
        others offer it has its turn between two batches; none begins once the time is over. One
        that did not answer, or takes what others offer, and may take this when it is asked again,
        is noted in `late`."""
        (tenant, owner), has = whose, [False] * len(keys)
        turn = self._turns.setdefault(node_id, asyncio.Lock())
        now = asyncio.get_running_loop().time
        ends = now() + seconds
        for at in range(0, len(keys), TAKE_BLOCKS_MAX):
            some = slice(at, at + TAKE_BLOCKS_MAX)
            async with _held(turn, ends - now()) as mine:
                left = min(ends - now(), TAKE_SECONDS_MAX)
                if not mine and late is not None:
                    late.add(node_id)
                if not mine or left <= 0:
                    return has
                request = pb.TakeRequest(
                    namespace=owner[0],
                    group=owner[1],
                    stored_keys=keys[some],
                    source=self._peers.node_id,
                    durable=durable,
                    worth=worth[some],
                )
                try:
                    link = await self._peers.link(node_id, tenant)
                    wait = left + _ANSWER_SECONDS
                    reply = await link.call(link.directory.Take, request, wait)
                except KVStoreError as error:
                    log.info("node %s does not take blocks: %s", node_id, error)
                    if fails(error):
                        self._peers.failed(node_id)
                    if late is not None and isinstance(error, Unavailable | Overloaded):
                        late.add(node_id)
                    return has
                self._free[node_id] = reply.free_bytes
                if len(reply.has) != len(request.stored_keys):
                    log.warning("node %s answers for other blocks than it was asked", node_id)
                    return has
                has[some] = [bool(one) for one in reply.has]
        return has

    async def drop(
        self, tenant: str, owner: Owner, keys: Sequence[bytes], read: Collection[bytes]
    ) -> set[bytes]:
        """Have whoever lists these blocks drop them; which were somewhere. Of those that are `read`
        here any node may be about to have a copy: all are told, and of all of them where it is not
        known who lists them."""
        listed, dropped = await self._whereabouts.listed(keys), set[bytes]()
        # In the order of the call: blocks go deepest first. There may be thousands, of nodes too.
        everywhere = [key for key in keys if key in read] if listed.all_said else list(keys)
        known = [one.node_id for one in self._peers.known()] if everywhere else []
        request_of = partial(pb.DropRequest, namespace=owner[0], group=owner[1])
        of_all, turns = request_of(stored_keys=everywhere), asyncio.Semaphore(TOLD_MAX)
        for one in self._peers.resting() if everywhere or listed.away.any() else ():
            log.warning("node %s may keep blocks that were removed: it rests", one.node_id)

        async def ask(node_id: str) -> None:
            some, request, tiers = everywhere, of_all, listed.holders.get(node_id)
            if tiers is not None and len(everywhere) < len(keys):
                pairs = zip(keys, tiers, strict=True)
                some = [key for key, one in pairs if one or key in read]
                request = request_of(stored_keys=some)
            if not some:
                return
            try:
                link = await self._peers.link(node_id, tenant)
                reply = await link.call(link.directory.Drop, request)
            except KVStoreError as error:
                log.warning("node %s may keep blocks that were removed: %s", node_id, error)
                return
            dropped.update(compress(some, reply.dropped))

        async def ask_in_turn(node_id: str) -> None:
            async with turns:
                await ask(node_id)

        await asyncio.gather(*map(ask_in_turn, dict.fromkeys([*known, *listed.holders])))
        return dropped

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def holding(self, some: Iterable[Part]) -> dict[bytes, set[str]]:
        """By a part's first key: who lists its blocks, or what stands before them."""
        known = {part.first: [key for key in (part.tip, part.keys[-1]) if key] for part in some}
        keys = list(dict.fromkeys(key for pair in known.values() for key in pair))
        holders = await self._whereabouts.holders(keys)
        at = {
            key: {node for node, tiers in holders.items() if tiers[i]} for i, key in enumerate(keys)
        }
        return {first: set().union(*(at[key] for key in pair)) for first, pair in known.items()}

    async def _copy(self, copies: int, durable: bool, have: dict[bytes, int]) -> None:
        """`have` grows as nodes answer."""
        groups = parts(self._store.blocks.index.peek, have)
        holding, candidates = await self.holding(groups), self.candidates(durable=durable)
        asked = dict[bytes, list[Candidate]]()
        for part in groups:
            near = holding[part.first]
            count = copies - 1 + SPARES
            asked[part.first] = choose(part.first, candidates, count, self._labels, near)
            await asyncio.sleep(0)  # there may be thousands, and callers wait
        while True:
            batches: dict[tuple[str, tuple[str, Owner]], list[Part]] = {}
            for part in groups:
                for _ in range(copies - min(have[key] for key in part.keys)):
                    if asked[part.first]:
                        chosen = asked[part.first].pop(0)
                        to = (chosen.node_id, (part.tenant, part.owner))
                        batches.setdefault(to, []).append(part)
            if not batches:
                return
            gives = [self._give(*to, some, durable, have) for to, some in batches.items()]
            await asyncio.gather(*gives)

    async def _give(
        self,
        node_id: str,
        whose: tuple[str, Owner],
        some: Sequence[Part],
        durable: bool,
        have: dict[bytes, int],
    ) -> None:
        line = [key for part in some for key in part.line]
        has = dict(zip(line, await self.offer(node_id, whose, line, durable=durable), strict=True))
        mine = [key for part in some for key in part.keys if has[key]]
        for key in mine:
            have[key] += 1
        self._counters.add("copied_blocks", len(mine))


@asynccontextmanager
async def _held(turn: asyncio.Lock, seconds: float) -> AsyncIterator[bool]:
    """Inside it the turn is ours, if it is true: if it came within so many seconds."""
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
            await turn.acquire()
    except TimeoutError:
        yield False
        return
    try:
        yield True
    finally:
        turn.release()
