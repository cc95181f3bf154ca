"""Who holds what is asked of a conductor, or else of the nodes; lies and silence are no holders.

The servers here are gRPC servers of the test's own, which answer what a test wants.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.clock import SimClock
from kvstore.config import OPEN
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.records import ConductorRecord, NodeRecord
from kvstore.metadata.roster import Roster
from kvstore.node import whereabouts
from kvstore.node.contacts import Contacts
from kvstore.node.peers import REST_SECONDS_MIN, Peers
from kvstore.node.whereabouts import Whereabouts
from kvstore.telemetry import NODE, Telemetry
from kvstore.wire.v1 import conductor_pb2_grpc, directory_pb2, directory_pb2_grpc

KEYS = [bytes([i]) * 32 for i in range(3)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is late because this machine is busy."""
    monkeypatch.setattr(whereabouts, "ASK_SECONDS", 30.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Whoever is to be late is waited for so long."""
    monkeypatch.setattr(whereabouts, "ASK_SECONDS", 2.0)


class Answerer(conductor_pb2_grpc.ConductorServicer, directory_pb2_grpc.DirectoryServicer):
    """Both a conductor and a node's directory: what it says, how late, and what it was asked."""

    def __init__(self, *holders: tuple[str, int, bytes]) -> None:
        self.holders, self.late, self.asked = holders, 0.0, 0
        self.prints, self.approximate = b"", False

    async def Holders(self, request: Any, context: Any) -> Any:
        self.asked += 1
        self.prints = request.fingerprints
        await asyncio.sleep(self.late)
        reply = directory_pb2.HoldersReply(approximate=self.approximate)
        for node_id, epoch, tiers in self.holders:
            reply.holders.add(node_id=node_id, epoch=epoch, tiers=tiers)
        return reply


def unknowing(*holders: tuple[str, int, bytes]) -> Answerer:
    """A conductor that does not know of every node what that has."""
    one = Answerer(*holders)
    one.approximate = True
    return one


class World:
    """Metadata, and what a node `me` makes of it."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.clock, dice = SimClock(1_000.0), random.Random(1)
        self._metadata, self._stack = EmbeddedMetadata(folder / "metadata.db"), stack
        self._nodes = Roster(self._metadata, NodeRecord, self.clock, dice)
        self._conductors = Roster(self._metadata, ConductorRecord, self.clock, dice)
        threads = stack.enter_context(ThreadPoolExecutor(1))
        contacts = Contacts(self.clock, Telemetry(NODE))
        self.peers = Peers("me", self._nodes, self.clock, threads, threads, OPEN, contacts)
        given = (self._conductors, self.clock, dice, OPEN)
        self.whereabouts = Whereabouts(self.peers, *given)
        stack.push_async_callback(self._metadata.close)
        stack.push_async_callback(self.whereabouts.close)

    async def node(self, name: str, serves: Answerer | None = None) -> None:
        address = await self._served(serves)
        record = NodeRecord(name, 1, address, {}, (), {}, "serving")
        await self._metadata.put(record.key(), record.encode())
        await self._nodes.load()

    async def conductor(self, name: str, serves: Answerer) -> None:
        record = ConductorRecord(name, await self._served(serves), "serving")
        await self._metadata.put(record.key(), record.encode())
        await self._conductors.load()

    async def found(self) -> dict[str, list[int]]:
        holders = await self.whereabouts.holders(KEYS)
        return {name: tiers.tolist() for name, tiers in holders.items()}

    async def _served(self, serves: Answerer | None) -> str:
        if serves is None:
            return "127.0.0.1:1"  # where nobody answers
        server = grpc.aio.server()
        conductor_pb2_grpc.add_ConductorServicer_to_server(serves, server)
        directory_pb2_grpc.add_DirectoryServicer_to_server(serves, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return f"127.0.0.1:{port}"


Run = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with AsyncExitStack() as stack, asyncio.timeout(60):
                await test(World(tmp_path, stack))

        asyncio.run(main())

    return run


def test_a_node_that_is_alone_asks_nobody(run: Run) -> None:
    async def test(world: World) -> None:
        conductor = Answerer(("me", 1, b"\1\1\1"))
        await world.conductor("x", conductor)
        assert world.whereabouts.alone and await world.found() == {} and conductor.asked == 0
        await world.node("me", Answerer())
        assert world.whereabouts.alone

    run(test)


def test_a_conductor_is_asked_and_the_nodes_are_not(run: Run) -> None:
    async def test(world: World) -> None:
        node = Answerer()
        conductor = Answerer(("a", 1, b"\1\2\0"))
        await world.node("a", node)
        await world.conductor("x", conductor)
        assert await world.found() == {"a": [1, 2, 0]}
        assert conductor.prints == b"".join(key[:8] for key in KEYS) and node.asked == 0

    run(test)


def test_without_a_conductor_every_node_speaks_for_itself(run: Run) -> None:
    async def test(world: World) -> None:
        await world.node("a", Answerer(("a", 1, b"\1\0\0")))
        await world.node("b", Answerer(("b", 1, b"\0\2\3")))
        await world.node("dead")
        assert await world.found() == {"a": [1, 0, 0], "b": [0, 2, 3]}
        assert not world.peers.may_ask("dead"), "it rests, and costs nobody any time"

    run(test)


def test_what_only_a_node_that_rests_lists_is_away(run: Run) -> None:
    """Not of one that has begun anew: it lists what it has."""

    async def test(world: World) -> None:
        tiers = ("a", 1, b"\1\1\0"), ("b", 1, b"\0\1\0"), ("old", 9, b"\0\0\1")
        await world.conductor("x", Answerer(*tiers))
        for name in ("a", "b", "old"):
            await world.node(name)
        for name in ("a", "old"):
            world.peers.failed(name)
        listed = await world.whereabouts.listed(KEYS)
        assert set(listed.holders) == {"b"} and listed.all_said
        assert listed.there.tolist() == [False, True, False]
        assert listed.away.tolist() == [True, True, False]

    run(test)


@pytest.mark.parametrize("tiers", [("a", 9, b"\1\1\0"), ("a", 1, b"\1")])
def test_what_a_conductor_says_of_a_node_and_cannot_be_read_is_not_all_that_there_is(
    run: Run, tiers: tuple[str, int, bytes]
) -> None:
    """As of one that was started anew since: what it lists now the conductor does not know yet."""

    async def test(world: World) -> None:
        await world.conductor("x", Answerer(tiers))
        await world.node("a")
        listed = await world.whereabouts.listed(KEYS)
        assert not listed.holders and not listed.all_said

    run(test)


def test_a_conductor_that_names_not_all_has_not_said_all(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.node.whereabouts.HOLDERS_MAX", 1)

    async def test(world: World) -> None:
        await world.conductor("x", Answerer(("a", 1, b"\1\1\0")))
        await world.node("a")
        listed = await world.whereabouts.listed(KEYS)
        assert set(listed.holders) == {"a"} and not listed.all_said

    run(test)


def test_where_one_conductor_does_not_know_of_all_another_is_asked(run: Run) -> None:
    async def test(world: World) -> None:
        node, knows = Answerer(("a", 1, b"\1\1\1")), Answerer(("a", 1, b"\1\1\0"))
        await world.node("a", node)
        await world.conductor("began just now", unknowing())
        await world.conductor("knows", knows)
        for _ in range(5):
            listed = await world.whereabouts.listed(KEYS)
            assert listed.there.tolist() == [True, True, False] and listed.all_said
        assert knows.asked == 5 and node.asked == 0

    run(test)


def test_where_no_conductor_knows_of_all_the_nodes_are_asked_beside_it(run: Run) -> None:
    """What it says of a node that gives no answer counts on."""

    async def test(world: World) -> None:
        await world.conductor("x", unknowing(("a", 1, b"\1\0\0"), ("dead", 1, b"\0\0\1")))
        await world.node("a", Answerer(("a", 1, b"\1\2\0")))
        await world.node("b", Answerer(("b", 1, b"\0\1\0")))
        assert await world.found() == {"a": [1, 2, 0], "b": [0, 1, 0]}
        assert (await world.whereabouts.listed(KEYS)).all_said
        await world.node("dead")
        listed = await world.whereabouts.listed(KEYS)
        assert set(listed.holders) == {"a", "b"} and not listed.all_said
        assert listed.away.tolist() == [False, False, True]

    run(test)


def test_a_node_that_says_it_has_nothing_is_believed_before_a_conductor_that_does_not_know_of_all(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        await world.conductor("x", unknowing(("a", 1, b"\1\1\1"), ("b", 9, b"\1\1\1")))
        for name in ("a", "b"):  # one of them was started anew since
            await world.node(name, Answerer())
        listed = await world.whereabouts.listed(KEYS)
        assert not listed.holders and listed.all_said

    run(test)


@pytest.mark.parametrize("named", [("a",), ()])
def test_of_many_nodes_a_conductor_that_does_not_know_of_all_knows_more_than_some_of_them(
    run: Run, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    monkeypatch.setattr("kvstore.node.whereabouts.ASKED_MAX", 1)

    async def test(world: World) -> None:
        nodes = {name: Answerer((name, 1, b"\1\1\1")) for name in ("a", "b")}
        for name, node in nodes.items():
            await world.node(name, node)
        await world.conductor("x", unknowing(*((name, 1, b"\1\1\0") for name in named)))
        listed = await world.whereabouts.listed(KEYS)
        assert set(listed.holders) == {*named} and not listed.all_said
        assert not any(node.asked for node in nodes.values())

    run(test)


def test_without_a_conductor_nobody_knows_what_one_that_rests_lists(run: Run) -> None:
    async def test(world: World) -> None:
        await world.node("a", Answerer(("a", 1, b"\1\0\0")))
        assert (await world.whereabouts.listed(KEYS)).all_said
        await world.node("dead")
        for _ in range(2):
            listed = await world.whereabouts.listed(KEYS)
            assert set(listed.holders) == {"a"} and not listed.all_said
        world.peers.failed("a")
        assert not world.whereabouts.alone
        assert not (await world.whereabouts.listed(KEYS)).all_said

    run(test)


def test_a_conductor_that_is_late_is_passed_over_and_left_alone_for_a_while(
    run: Run, hasty: None
) -> None:
    async def test(world: World) -> None:
        late = Answerer(("a", 1, b"\1\1\1"))
        late.late = 30.0
        node = Answerer(("a", 1, b"\1\0\0"))
        await world.node("a", node)
        await world.conductor("late", late)
        assert await world.found() == {"a": [1, 0, 0]} and late.asked == 1
        assert await world.found() == {"a": [1, 0, 0]} and late.asked == 1, "it rests"
        late.late = 0.0
        await world.clock.advance(REST_SECONDS_MIN + 0.1)
        assert await world.found() == {"a": [1, 1, 1]} and late.asked == 2

    run(test)


def test_a_conductor_that_was_late_once_rests_no_longer_the_more_waited_for_it(
    run: Run, hasty: None
) -> None:
    async def test(world: World) -> None:
        late = Answerer(("a", 1, b"\1\1\1"))
        late.late = 30.0
        await world.node("a", Answerer(("a", 1, b"\1\0\0")))
        await world.conductor("late", late)
        found = await asyncio.gather(*(world.found() for _ in range(4)))
        assert found == [{"a": [1, 0, 0]}] * 4 and late.asked == 4
        late.late = 0.0
        await world.clock.advance(REST_SECONDS_MIN + 0.1)
        assert await world.found() == {"a": [1, 1, 1]}

    run(test)


def test_one_conductor_of_two_is_enough(run: Run, hasty: None) -> None:
    async def test(world: World) -> None:
        late, well = Answerer(("a", 1, b"\1\1\1")), Answerer(("a", 1, b"\2\2\2"))
        late.late = 30.0
        await world.node("a", Answerer())
        await world.conductor("late", late)
        await world.conductor("well", well)
        for _ in range(5):
            assert await world.found() == {"a": [2, 2, 2]}
        assert late.asked <= 1

    run(test)


@pytest.mark.parametrize(
    "lie",
    [
        ("a", 1, b"\1\1"),  # of two blocks, where three were asked for
        ("a", 1, b"\1" * 4),
        ("a", 2, b"\1\1\1"),  # another start of it
        ("me", 1, b"\1\1\1"),
        ("nobody", 1, b"\1\1\1"),
        ("a", 1, b""),
    ],
)
def test_a_lie_names_no_holder(run: Run, lie: tuple[str, int, bytes]) -> None:
    async def test(world: World) -> None:
        await world.node("a", Answerer())
        await world.node("b", Answerer())
        await world.conductor("liar", Answerer(lie, ("b", 1, b"\1\0\1")))
        assert await world.found() == {"b": [1, 0, 1]}

    run(test)


def test_a_tier_that_nobody_knows_is_none(run: Run) -> None:
    async def test(world: World) -> None:
        await world.node("a", Answerer())
        await world.conductor("x", Answerer(("a", 1, b"\xf8\xff\x08")))
        assert await world.found() == {"a": [0, 7, 0]}

    run(test)
