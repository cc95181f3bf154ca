"""Callers that take what is sent to them late: they lose the block, and are given no other's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvstore.errors import PinExpired, WindowClosed
from kvstore.limits import PIN_MS_DEFAULT, REMOTE_WINDOW_SECONDS
from kvstore.node.namespaces import Place
from kvstore.node.streams import StreamingKVService
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

get: Any = StreamingKVService.Get
put: Any = StreamingKVService.Put
NOBODY: Any = None


class AnyCall:
    """A call that waits for as long as it takes."""

    def time_remaining(self) -> None:
        return None


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
        other, long = rig.session("other"), prompt(SMALL, 4 * TOKENS, start=1_000)
        others = rig.put(other, SMALL, long, 0, 3)  # no tenant writes all that is free at once
        others += rig.put(other, SMALL, long, 3)
        assert slot.offset in [one.offset for one in others], "its place is another tenant's"
        with pytest.raises(PinExpired):
            await anext(replies)

    asyncio.run(work())


def test_a_put_of_which_nothing_but_empty_pieces_come_loses_its_window() -> None:
    rig, namespaces = Rig(slabs=1), OnePlace()
    told: Any = (rig.store, namespaces, rig.sessions, rig.counters)
    service = StreamingKVService(*told, pb.SessionEvent.Opened(), NOBODY)
    mine = prompt(SMALL, TOKENS)

    async def parts() -> AsyncIterator[pb.PutRequest]:
        size = SMALL.layout.block_bytes(TOKENS)
        named = {"namespace": SMALL.owner[0], "hash": mine.hashes[0], "tokens": TOKENS}
        yield pb.PutRequest(block=pb.PutBlock(**named, payload_bytes=size))
        for _ in range(4):
            assert len(rig.store.windows) == 1
            await rig.clock.advance(0.6 * REMOTE_WINDOW_SECONDS)
            rig.store.expire()
            yield pb.PutRequest(data=b"")

    async def work() -> None:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        with pytest.raises(WindowClosed):
            await put.__wrapped__(service, parts(), AnyCall())
        assert not len(rig.store.windows)

    asyncio.run(work())
