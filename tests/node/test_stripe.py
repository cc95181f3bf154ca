"""Who is left alone for a stripe that did not come in time: whoever was asked, and nobody else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.errors import SessionEnded
from kvstore.limits import FETCH_PEER_BYTES_MAX
from kvstore.node import stripe
from kvstore.node.delivery import Deliveries, Wanted
from kvstore.node.stripe import StripeRun
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig

TIME = 0.5  # that a stripe has: of both tests all of it passes


class Silent:
    """Stands for `Peers`: whoever is asked never answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.resting: list[str] = []

    async def link(self, node_id: str, tenant: str) -> Any:
        self.asked.append(node_id)
        await asyncio.Event().wait()

    def failed(self, node_id: str) -> None:
        self.resting.append(node_id)


class Strange(Silent):
    """Likewise: whoever is asked has ended this node's session."""

    async def link(self, node_id: str, tenant: str) -> Any:
        self.asked.append(node_id)
        raise SessionEnded("the node does not know this session")


class Waited(Silent):
    """Likewise, and for the link to whoever is asked: it has a block, and no thread of this node
    comes to fetch it."""

    session, node_id, kv = b"", "a", SimpleNamespace(Open=None, Close=None)

    async def link(self, node_id: str, tenant: str) -> Any:
        self.asked.append(node_id)
        return self

    async def call(self, *_: object) -> pb.OpenReply:
        return pb.OpenReply(
            outcomes=[pb.HIT],
            slot_offsets=[0],
            generations=[1],
            tokens=[TOKENS],
            roots=[b"r" * 16],
            handles=[b"h" * 40],
            parents=[b""],
            origins=[0],
        )

    async def pull(self, layout: Any, slots: Any, landing: Any, term: Term) -> Any:
        term.waits = True  # as `Link.in_thread` has it
        await asyncio.Event().wait()


class Desk:
    """One block that node a is to bring."""

    def __init__(self, asked: type[Silent] = Silent) -> None:
        self.rig, self.peers = Rig(), asked()
        peers: Any = self.peers
        given = (self.rig.clock, self.rig.counters)
        self.deliveries = Deliveries(self.rig.blocks, self.rig.arena, peers, *given)
        key = bytes([1]) * 32
        self.wanted = Wanted("default", SMALL, (), [key], frozenset([key]))

    async def run(self) -> None:
        to: Any = (self.deliveries, self.peers, self.rig.counters)
        run = StripeRun(["a"], self.wanted, *to)
        async with asyncio.timeout(60.0):
            await run.run(TIME)
        assert run.unreached == set(self.wanted.keys), "it may have them all the same"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripe, "FETCH_SECONDS_MAX", TIME)


def test_a_holder_that_was_asked_and_does_not_answer_is_left_alone() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.run()
        assert desk.peers.asked == desk.peers.resting == ["a"]

    asyncio.run(main())


def test_a_holder_to_which_no_thread_of_this_node_came_is_not_left_alone() -> None:
    async def main() -> None:
        desk = Desk(Waited)
        await desk.run()
        assert (desk.peers.asked, desk.peers.resting) == (["a"], [])
        assert not desk.rig.blocks.arriving, "its slots are let go"

    asyncio.run(main())


def test_a_holder_that_has_ended_the_session_is_neither_failed_nor_known_to_lack_anything() -> None:
    async def main() -> None:
        desk = Desk(Strange)
        await desk.run()
        assert (desk.peers.asked, desk.peers.resting) == (["a"], [])

    asyncio.run(main())


def test_a_holder_whose_line_is_long_is_no_failure_of_it() -> None:
    async def main() -> None:
        desk = Desk()
        async with desk.deliveries._in_flight.turn("a", "default", FETCH_PEER_BYTES_MAX, 60.0):
            await desk.run()
        assert desk.peers.asked == desk.peers.resting == []

    asyncio.run(main())
