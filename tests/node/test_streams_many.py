"""A Get of many blocks: others are asked for them in few calls, whoever has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvstore.node.fetch import Fetch, rows_max
from kvstore.node.streams import StreamingKVService
from kvstore.node.whereabouts import Listed
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt
from tests.node.test_streams_slow import AnyCall, OnePlace, get

NOBODY: Any = None


class Nowhere:
    """Stands for `Whereabouts`: there are others, and they have nothing."""

    alone = False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.has: set[bytes] = set()

    async def listed(self, keys: Sequence[bytes]) -> Listed:
        if keys:
            self.asked.append(len(keys))
        tiers = np.array([key in self.has for key in keys], np.uint8)
        holders = {"holder": tiers} if tiers.any() else {}
        return Listed(holders, np.zeros(len(keys), np.bool_), True)


def test_nobody_is_asked_twice_for_blocks_that_nobody_has() -> None:
    rig, count = Rig(), 600
    others: Any = Nowhere()
    fetch = Fetch(rig.blocks, rig.arena, NOBODY, others, rig.clock, rig.counters)
    told: Any = (rig.store, OnePlace(), rig.sessions, rig.counters)
    pool: Any = SimpleNamespace(fetch=fetch)
    service = StreamingKVService(*told, pb.SessionEvent.Opened(), NOBODY, pool=pool)
    wanted = prompt(SMALL, count * TOKENS)
    here = 3
    rig.put(rig.session(), SMALL, prompt(SMALL, here * TOKENS))
    request = pb.GetRequest(namespace=SMALL.owner[0], hashes=wanted.hashes)

    async def work() -> None:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        replies = [one async for one in get.__wrapped__(service, request, AnyCall())]
        outcomes = [one.block.outcome for one in replies if one.HasField("block")]
        assert outcomes == [pb.HIT] * here + [pb.ABSENT] * (count - here)

    asyncio.run(work())
    calls = -(-count // rows_max(SMALL))  # each for what there is, and for what of it did not come
    assert sum(others.asked) == 2 * (count - here) and len(others.asked) == 2 * calls


def test_what_somebody_lists_and_did_not_come_is_asked_for_again() -> None:
    """As where there was no room for all of a run at once."""
    rig = Rig()
    others: Any = Nowhere()
    fetch = Fetch(rig.blocks, rig.arena, NOBODY, others, rig.clock, rig.counters)
    keys = rig.store.keys("default", SMALL, prompt(SMALL, 3 * TOKENS).hashes)
    others.has = {keys[1]}
    assert asyncio.run(fetch.nowhere(keys)) == {keys[0], keys[2]}
