"""What is brought from one other node at once is bounded, whatever the blocks are like; and who
gives up leaves nothing open there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvstore.layout import SlotLayout
from kvstore.limits import FETCH_STRIPE_BYTES_MAX
from kvstore.node.delivery import Deliveries, Wanted
from kvstore.node.fetch import rows_max
from kvstore.node.namespaces import Place
from kvstore.node.stripe import StripeRun
from kvstore.spec import KVGroup, KVSpec
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.holder import Holder, cancelled_while_it_asks
from tests.node.rig import SMALL, TOKENS, Rig, prompt

# 65,536 strips of 2 bytes, and a hash of 8 for each.
SPEC = KVSpec("tiny strips", "r0", "float16", (KVGroup(tuple(range(64)), 1_024, 1, 1, parts=1),))
TINY = Place((SPEC.digest, 0), SlotLayout.of(SPEC, 0), SPEC.dtype)


def test_hashes_count_among_what_is_on_its_way_where_they_are_the_most_of_it() -> None:
    async def main() -> None:
        rig = Rig()
        nobody: Any = None
        to = Deliveries(rig.blocks, rig.arena, nobody, rig.clock, rig.counters)
        keys = [number.to_bytes(32) for number in range(rows_max(TINY))]
        async with to.turn("a", Wanted("default", TINY, (), keys, frozenset(keys)), 1.0):
            coming = to._in_flight.bytes_from("a")
        assert coming == len(keys) * (TINY.layout.root_bytes + TINY.layout.payload_bytes)
        assert FETCH_STRIPE_BYTES_MAX * 0.9 < coming <= FETCH_STRIPE_BYTES_MAX

    asyncio.run(main())


def test_what_a_holder_has_and_may_not_give_now_is_told_apart_from_what_it_lacks() -> None:
    outcomes = [pb.NO_ROOM, pb.ABSENT, pb.LATE, pb.HIT]  # for that one no room is here
    nothing = [b""] * len(outcomes)
    reply = pb.OpenReply(
        outcomes=outcomes,
        slot_offsets=[0] * 4,
        generations=[0, 0, 0, 1],
        tokens=[0, 0, 0, TOKENS],
        roots=[*nothing[1:], b"r" * 16],
        handles=[*nothing[1:], b"h" * 40],
        parents=nothing,
        origins=[0] * 4,
    )

    class Short:
        """Stands for `Peers`, and for the link to one that gives nothing."""

        session, node_id, kv = b"", "a", SimpleNamespace(Open=None, Close=None)

        async def link(self, *_: object) -> Any:
            return self

        async def call(self, *_: object) -> pb.OpenReply:
            return reply

        async def pull(self, *_: object) -> Any:
            return np.zeros(0, bool)

    async def main() -> None:
        rig, peers = Rig(), Short()
        full = prompt(SMALL, 16 * TOKENS)
        rig.put(rig.session(), SMALL, full)
        for one in full.hashes:
            rig.pinned(rig.session(), one)
        others: Any = peers
        to = Deliveries(rig.blocks, rig.arena, others, rig.clock, rig.counters)
        keys = [bytes([number]) * 32 for number in range(4)]
        wanted = Wanted("default", SMALL, (), keys, frozenset(keys))
        run = StripeRun(["a"], wanted, to, others, rig.counters)
        await run.run(1.0)
        assert run.unreached == {keys[0], keys[2], keys[3]}

    asyncio.run(main())


def test_who_is_cancelled_while_it_opens_blocks_leaves_none_open_there() -> None:
    async def main() -> None:
        rig, holder = Rig(), Holder([b"handle"])
        peers: Any = holder
        to = Deliveries(rig.blocks, rig.arena, peers, rig.clock, rig.counters)
        wanted = Wanted("default", SMALL, (), [b"k" * 32], frozenset())
        bringing = asyncio.create_task(to.bring("holder", wanted, Term()))
        await cancelled_while_it_asks(bringing, holder)
        assert not holder.open

    asyncio.run(main())
