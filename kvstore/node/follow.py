"""Blocks that are still being written at another node, followed into this one layer by layer.

Readers of this host read them as they read any that is being written here: behind the watermark in
the slot's own strip table, which moves on as layers come and are proven. A block that its writer
seals there is sealed here; one that is given up, or whose node is gone, is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from kvstore.cadence import Cadence
from kvstore.clock import Clock
from kvstore.core.forgone import Forgone
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.errors import KVStoreError, Overloaded, SessionEnded, Unavailable
from kvstore.layout import TABLE_OFFSET, Fragment, SlotLayout
from kvstore.limits import FETCH_SECONDS_MAX, FETCH_STRIPE_BYTES_MAX, PIN_MS_MAX
from kvstore.memory.arena import Arena
from kvstore.memory.order import fence
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims
from kvstore.node.handles import tag_of
from kvstore.node.link import Link
from kvstore.node.long_calls import parts
from kvstore.node.namespaces import Place
from kvstore.node.openings import Openings
from kvstore.node.peers import Peers, fails
from kvstore.node.replies import hits_of, slots_of
from kvstore.telemetry import Telemetry
from kvstore.transfer.frames import Found
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.landing import IDENTITY_BYTES
from kvstore.transfer.protocol import Ints, Mask, Slots
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb

T = TypeVar("T")

log = logging.getLogger(__name__)

SOON_SECONDS, LATER_SECONDS = 1e-3, 20e-3  # between two looks at a writer, the least and the most
# Calls that hold a thread at once, of those that all nodes share: one node's, and all of theirs.
# The others are for what is fetched: its readers do not wait for writers whose links are slow.
LOOKS_MAX, LOOKS_OF_ALL_MAX = 4, 16
UNREAD_SECONDS = 5.0  # a block that no reader here has open for so long is followed no more
_RETRY_MS = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """Blocks of one call that a reader wants to follow: parallel lists, a row a block."""

    tenant: str
    place: Place
    hashes: Sequence[bytes]
    keys: Sequence[bytes]
    hand_offs: Sequence[bytes]  # empty, or one a hash
    writer_group: str = ""
    writer_node: str = ""  # id or host of the node that this group writes to; empty: this one

    def at(self, row: int) -> bytes:
        return self.hand_offs[row] if self.hand_offs else b""


class Follow:
    """What is being followed, for all readers: each writer's block once."""

    def __init__(
        self,
        blocks: Blocks,
        arena: Arena,
        peers: Peers,
        claims: Claims,
        forgone: Forgone,
        clock: Clock,
        counters: Telemetry,
    ) -> None:
        self._blocks, self._arena, self._peers = blocks, arena, peers
        self._claims, self._clock, self._counters = claims, clock, counters
        self._forgone = forgone
        self._here: dict[tuple[str, bytes, str, bytes], Slot] = {}  # see `_name`
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()  # by node, while it is followed
        self._looks = asyncio.Semaphore(LOOKS_OF_ALL_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._openings = Openings()

    async def local(self, asked: Asked) -> list[bytes]:
        """The hand-offs to open here: in the place of another node's those of slots that follow it.

        Empty where there is nothing to follow, and the key must do. What another node does, or
        fails to do, raises nothing.
        """
        found = [asked.at(row) for row in range(len(asked.keys))]
        if asked.writer_group and self._peers.gone(asked.writer_node):
            self._hear(asked, over=True)
        rows: dict[str, list[int]] = {}
        for row, handle in enumerate(found):
            node = self._writer(asked, handle)
            if node is None:
                continue  # it is this node's, or nobody's
            found[row] = b""  # also where the writer's node is gone: then its key must do
            held = self._blocks.index.held(asked.keys[row])
            if held is None or not (held.listed or held.tier is Tier.DRAM):
                rows.setdefault(node, []).append(row)
            elif not held.listed:  # its key opens nothing, and it would come in vain
                found[row] = self._claims.for_hand_off(held)

        async def set_out(node: str, some: list[int]) -> None:
            # By name: of a block that stands twice in one call each would be followed.
            new = {self._name(asked, row): row for row in some if not self._known(asked, row)}
            if new:
                try:
                    await self._begin(node, asked, [*new.values()])
                except KVStoreError as error:
                    log.info("node %s is not followed: %s", node, error)
                    if fails(error):
                        self._peers.failed(node)
            for part in parts(len(some)):
                for row in some[part]:
                    slot = self._known(asked, row)
                    found[row] = b"" if slot is None else self._claims.for_hand_off(slot)
                await asyncio.sleep(0)

        await asyncio.gather(*(set_out(node, some) for node, some in rows.items()))
        return found

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._openings.close()

    def _writer(self, asked: Asked, handle: bytes) -> str | None:
        """The other node at which a block is being written."""
        if handle:
            return self._peers.by_tag(tag_of(handle))
        if asked.writer_group and asked.writer_node:
            return self._peers.by_name(asked.writer_node)
        return None

    def _name(self, asked: Asked, row: int) -> tuple[str, bytes, str, bytes]:
        """Tenant, hand-off, writer group, stored key: whose block this is."""
        handle = asked.at(row)
        return asked.tenant, handle, "" if handle else asked.writer_group, asked.keys[row]

    def _known(self, asked: Asked, row: int) -> Slot | None:
        slot = self._here.get(self._name(asked, row))
        return slot if slot is not None and slot.state in (State.FILLING, State.SEALED) else None

    async def _begin(self, node: str, asked: Asked, rows: list[int]) -> None:
        """Open the blocks there, make room here, and set out."""
        link = await self._peers.link(node, asked.tenant)
        owner, layout = asked.place.owner, asked.place.layout
        request = pb.OpenRequest(
            session=link.session,
            namespace=owner[0],
            group=owner[1],
            hashes=[asked.hashes[row] for row in rows],
            hand_offs=[asked.at(row) for row in rows] if asked.hand_offs else [],
            writer_group=asked.writer_group,
            pin_ms=PIN_MS_MAX,
            lineage=True,
        )
        reply = await self._openings.open(link, request)
        handles = list(reply.handles)
        try:
            hits = hits_of(reply, len(rows), layout)
        except Unavailable:
            self._openings.let_go(link, handles)
            raise
        # What may yet be had of the node is no end, here either.
        self._hear(asked, over={*reply.outcomes} - {pb.HIT} == {pb.FORGONE})
        # Another reader may have set out for them while this one asked.
        hits = [i for i in hits if self._known(asked, rows[i]) is None]
        wanted = [(asked.keys[rows[i]], reply.parents[i], reply.tokens[i]) for i in hits]
        told = (asked.tenant, frozenset(asked.keys), [reply.origins[i] for i in hits])
        try:
            here = self._blocks.arriving.begin(owner, layout, wanted, *told)
        except KVStoreError as error:  # this node's slabs are too small for any
            log.info("node %s is not followed: %s", node, error)
            here = []
        if len(here) < len(hits):
            log.info("there is room for %d of %d blocks that are followed", len(here), len(hits))
            hits = hits[: len(here)]
        if not hits:
            self._openings.let_go(link, handles)
            return
        names = [self._name(asked, rows[i]) for i in hits]
        self._here.update(zip(names, here, strict=True))
        there = slots_of(reply, hits)
        offsets = np.array([one.offset + layout.head_bytes for one in here], dtype=np.int64)
        landing = HashedLanding(layout, self._arena.bytes, offsets, there.tokens)
        run = _Run(link, asked.place, there, here, landing, handles)
        task = asyncio.create_task(self._run(run, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear(self, asked: Asked, *, over: bool) -> None:
        """Whether a group reserves nothing more, as its node says or because that is gone: readers
        here hear it of this one."""
        told = self._forgone.add if over else self._forgone.goes_on
        told(asked.tenant, asked.writer_group)

    async def _run(self, run: _Run, names: list[tuple[str, bytes, str, bytes]]) -> None:
        """Behind the writers until each block is whole, or never will be."""
        layout, read = run.place.layout, self._clock.now()
        left = np.arange(len(run.here), dtype=np.int64)
        layers = np.zeros(len(run.here), dtype=np.int64)
        cadence = Cadence(SOON_SECONDS, LATER_SECONDS, read)
        turns = self._turns.setdefault(run.link.node_id, asyncio.Semaphore(LOOKS_MAX))
        try:
            while len(left):
                if any(run.here[row].pins for row in left.tolist()):
                    read = self._clock.now()
                elif self._clock.now() - read > UNREAD_SECONDS:
                    return
                given = (run.link.lanes.look, run.there.pick(left), layout.whole)
                looked = await self._in_turn(run, turns, *given)
                gained = looked.layers > layers[left]
                # Blocks that gained the same layers move together: few calls, whatever the blocks.
                pairs = zip(layers[left][gained], looked.layers[gained], strict=True)
                steps = sorted({(int(first), int(last)) for first, last in pairs})
                for first, last in steps:
                    gain = left[(layers[left] == first) & (looked.layers == last)]
                    for some in _pieces(gain, layout, last - first):
                        good = await self._in_turn(run, turns, run.advance, some, first, last)
                        layers[some[good]] = last
                over = looked.found != Found.FILLING
                whole = (looked.found == Found.SEALED) & (layers[left] == layout.layers)
                for rows, good_ones in ((left[whole], True), (left[over & ~whole], False)):
                    for part in parts(len(rows)):
                        self._end(run, rows[part], whole=good_ones)
                        left = np.setdiff1d(left, rows[part], assume_unique=True)
                        await asyncio.sleep(0)  # the loop is others' too
                now = self._clock.now()
                if steps:
                    cadence.landed(now, sum(last - first for first, last in steps))
                await self._clock.sleep(cadence.pause(now))
        except KVStoreError as error:
            log.info("node %s is followed no more: %s", run.link.node_id, error)
            if fails(error):
                self._peers.failed(run.link.node_id)
        finally:
            self._end(run, left, whole=False)
            for name, slot in zip(names, run.here, strict=True):
                if self._here.get(name) is slot:  # else its group began the block anew
                    del self._here[name]
            self._openings.let_go(run.link, run.handles)

    async def _in_turn(
        self,
        run: _Run,
        turns: asyncio.Semaphore,
        work: Callable[..., T],
        *given: Any,
    ) -> T:
        """As `Link.in_thread`, within a bounded time, once few others that follow this node have a
        thread, nor too many that follow any.

        Where one meets that the node does not do its part, those that wait on its link end too:
        each would hold a thread to find out the same."""
        async with turns, self._looks:
            if not run.link.alive:
                raise SessionEnded(f"the link to node {run.link.node_id} has ended or failed")
            term = Term()
            try:
                async with asyncio.timeout(FETCH_SECONDS_MAX):
                    return await run.link.in_thread(work, *given, term, term=term)
            except TimeoutError:
                if term.waits:
                    raise Overloaded("no thread came to follow it", _RETRY_MS) from None
                run.link.give_up()
                raise Unavailable(f"node {run.link.node_id} is too slow to be followed") from None
            except KVStoreError as error:
                if fails(error):
                    run.link.give_up()
                raise

    def _end(self, run: _Run, rows: Ints, *, whole: bool) -> None:
        """Nothing more will come of blocks: they are as whole as their writer made them."""
        if whole:
            self._counters.add("followed_blocks", len(rows))
        slots = [run.here[row] for row in rows.tolist()]
        self._blocks.arriving.end(slots, run.place.layout, whole=whole)


def _pieces(rows: Ints, layout: SlotLayout, layers: int) -> Iterator[Ints]:
    """Blocks of which so many layers come in one go: no more than a fetch asks for in one, since
    one has no more time."""
    most = max(1, FETCH_STRIPE_BYTES_MAX * layout.layers // (layout.sent_bytes * layers))
    for first in range(0, len(rows), most):
        yield rows[first : first + most]


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks at one peer and the slots they come into: row i of each."""

    link: Link
    place: Place
    there: Slots
    here: Sequence[Slot]
    landing: HashedLanding
    handles: list[bytes]

    def advance(self, rows: Ints, first: int, last: int, term: Term) -> Mask:
        """Bring layers [first, last) of blocks and publish them; which of them came whole."""
        layout, landing = self.place.layout, self.landing
        part = Fragment(first, last - first, 0, layout.kv_heads)
        good = self.link.lanes.pull(layout, self.there.pick(rows), part, landing, rows, term)
        some = slice(first * layout.kv_heads, last * layout.kv_heads)
        fence()  # whoever sees an entry may read the strip
        for i, row in enumerate(rows.tolist()):
            at = self.here[row].offset + TABLE_OFFSET
            identity = landing.memory[at - IDENTITY_BYTES : at]
            good[i] &= bool((identity == landing.runs[row, :IDENTITY_BYTES]).all())
            if good[i]:
                table = np.frombuffer(landing.memory, np.uint64, layout.strips, at)
                table[some] = landing.runs[row, IDENTITY_BYTES:].view(np.uint64)[some]
        return good
