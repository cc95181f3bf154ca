"""What other nodes have this one do, within the time that they wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvstore.errors import Overloaded, Unavailable
from kvstore.node.namespaces import Place
from kvstore.node.peer_service import PeerService
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import directory_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

SECONDS = 10.0


class Late:
    """Stands for `Tiers` of a disk that writes nothing any more."""

    asked = 0

    async def flushed(self, keys: Sequence[bytes]) -> None:
        self.asked += 1
        await asyncio.Event().wait()


class Known:
    """Stands for `Namespaces`."""

    async def place(self, digest: bytes, group: int) -> Place:
        return SMALL


class Nothing:
    """Stands for `Taking` of a node to which nothing is on its way."""

    async def forgo(self, tenant: str, keys: Sequence[bytes]) -> None: ...


class Call:
    """Stands for the context of another node's call."""

    def time_remaining(self) -> float:
        return 0.1


class Unasked:
    """Stands for `Namespaces` whose metadata does not answer."""

    async def place(self, digest: bytes, group: int) -> Place:
        raise Unavailable("the metadata store does not answer")


@pytest.mark.parametrize("method", ["Take", "Drop"])
def test_a_node_whose_metadata_is_away_is_not_held_for_dead_by_the_others(method: str) -> None:
    async def main() -> None:
        rig = Rig()
        given: Any = (Unasked(), Nothing(), None)
        service = PeerService("b", 1, rig.clock, rig.store, *given)
        request: Any = getattr(pb, f"{method}Request")(namespace=SMALL.owner[0])
        with pytest.raises(Overloaded, match="does not answer"):
            await getattr(PeerService, method).__wrapped__(service, request, Call())

    asyncio.run(main())


def test_blocks_that_another_node_removes_go_in_its_time_though_the_disk_is_late() -> None:
    """Else it would take this node for dead, and end what it fetches from it."""

    async def main() -> None:
        rig = Rig()
        late = Late()
        tiers: Any = (Known(), Nothing(), late)
        service = PeerService("b", 1, rig.clock, rig.store, *tiers)
        chain = prompt(SMALL, 2 * TOKENS)
        rig.put(rig.session(), SMALL, chain)
        keys = rig.store.keys("default", SMALL, chain.hashes)
        CALLER.set(Caller(Role.NODE, "a", "default"))
        request = pb.DropRequest(namespace=SMALL.owner[0], stored_keys=keys)
        async with asyncio.timeout(SECONDS):
            reply = await service.Drop(request, Call())
            assert reply.dropped == b"\1\1" and rig.hits(SMALL, chain) == 0
            again = await service.Drop(request, Call())
        assert again.dropped == b"\0\0" and late.asked == 1, "of what is not here no disk is asked"

    asyncio.run(main())
