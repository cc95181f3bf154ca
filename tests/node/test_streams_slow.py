"""Callers that take what is sent to them late: they lose the block, and are given no other's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore.errors import PinExpired
from kvstore.limits import PIN_MS_DEFAULT
from kvstore.node.namespaces import Place
from kvstore.node.streams import StreamingKVService
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

get: Any = StreamingKVService.Get
NOBODY: Any = None


class OnePlace:
    """Stands for the namespaces of a node that knows one."""

    async def place(self, digest: bytes, group: int) -> Place:
        return SMALL


def test_of_a_block_whose_pin_ended_before_its_first_bytes_none_are_sent() -> None:
    rig, namespaces = Rig(slabs=1), OnePlace()
    told: Any = (rig.store, namespaces, rig.sessions, rig.counters)
    service = StreamingKVService(*told, pb.SessionEvent.Opened(), NOBODY)
    mine = prompt(SMALL, TOKENS)
    [slot] = rig.put(rig.session(), SMALL, mine)
    request = pb.GetRequest(namespace=SMALL.owner[0], hashes=mine.hashes)

    async def work() -> None:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        replies = get.__wrapped__(service, request, NOBODY)
        assert (await anext(replies)).block.outcome == pb.HIT
        await rig.clock.advance(PIN_MS_DEFAULT / 1e3 + 1.0)  # its caller takes nothing meanwhile
        rig.store.expire()
        rig.store.remove([slot.key])
        others = rig.put(rig.session("other"), SMALL, prompt(SMALL, 4 * TOKENS, start=1_000))
        assert slot.offset in [one.offset for one in others], "its place is another tenant's"
        with pytest.raises(PinExpired):
            await anext(replies)

    asyncio.run(work())
