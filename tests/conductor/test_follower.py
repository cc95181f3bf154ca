"""A follower of a real Directory service has what it lists, however often the stream breaks."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvstore.clock import SystemClock
from kvstore.conductor import follower as module
from kvstore.conductor.follower import follow
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.table import Table
from kvstore.conductor.tracked import Tracked
from kvstore.config import Credentials
from kvstore.core.carried import Ledger
from kvstore.core.listing import Listing
from kvstore.errors import Overloaded
from kvstore.node.directory import DirectoryService
from kvstore.rpc.server import Server
from kvstore.wire.v1 import directory_pb2 as pb
from kvstore.wire.v1 import directory_pb2_grpc

SECONDS = 20.0  # far more than anything here takes


class Node:
    """A listing, and a server of it that can go and come back at the same address."""

    def __init__(self, epoch: int = 1) -> None:
        self.listing, self.epoch = Listing(changes_kept=2_000), epoch
        self.carried = Ledger()
        self.snapshots, self.follows, self.address = 0, 0, "127.0.0.1:0"

    async def serve(self) -> None:
        service = DirectoryService("n", self.epoch, self.listing, self.carried, SystemClock())
        self._count(service)
        add = partial(directory_pb2_grpc.add_DirectoryServicer_to_server, service)
        self._server = Server(self.address, {"moonpool.v1.Directory": add})
        self.address = self._server.address
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def say(self, number: int, tiers: int) -> None:
        self.listing.put_all(np.array([number], np.uint64), tiers)

    def _count(self, service: DirectoryService) -> None:
        follow, snapshot = service.follow, service._snapshot

        async def counted_follow(*given: Any) -> None:
            self.follows += 1
            await follow(*given)

        async def counted_snapshot(*given: Any) -> int:
            self.snapshots += 1
            return await snapshot(*given)

        service.follow, service._snapshot = counted_follow, counted_snapshot  # type: ignore[method-assign]


class Rig:
    def __init__(self) -> None:
        self.node, self.table, self.heard = Node(), Table(PoolIndex(0x9E3779B97F4A7C15)), 0
        self.tracked = Tracked("n", self.table)

    @property
    def same(self) -> bool:
        if "n" not in self.table:
            return False
        listed = dict(self.node.listing.items())
        tiers = self.table.tiers("n", np.array(list(listed), np.uint64)).tolist()
        return tiers == list(listed.values()) and self.table.count("n") == len(listed)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.01)


class Hurried(SystemClock):
    """Notes how long it was to sleep, and sleeps a hundredth of that."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(seconds / 100)


def followed(
    work: Callable[[Rig], Coroutine[Any, Any, None]], clock: SystemClock | None = None
) -> None:
    async def run() -> None:
        rig = Rig()
        await rig.node.serve()

        def heard() -> None:
            rig.heard += 1

        address, dice = rig.node.address, random.Random(1)
        task = asyncio.create_task(
            follow(rig.tracked, address, heard, clock or SystemClock(), dice, Credentials())
        )
        try:
            await work(rig)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await rig.node.stop()

    asyncio.run(run())


def test_a_stream_that_broke_is_taken_up_where_it_stood_and_else_anew() -> None:
    async def work(rig: Rig) -> None:
        dice, node = random.Random(2), rig.node
        for number in range(500):
            node.say(number, 1)
        await rig.until(lambda: rig.same)
        for cut in range(3):
            await node.stop()
            for _ in range(300):
                node.say(dice.randrange(900), dice.randrange(4))
            await node.serve()
            await rig.until(lambda: rig.same)
            assert (node.follows, node.snapshots) == (cut + 2, 1), "it knew all but the last"
        await node.stop()
        for _ in range(2_500):
            node.say(dice.randrange(900), dice.randrange(4))
        assert not rig.same and "n" in rig.table, "what it knew stays while the node is away"
        await node.serve()
        await rig.until(lambda: rig.same)
        assert node.snapshots == 2, "it was away for more than the node remembers"
        await node.stop()
        node.listing, node.epoch = Listing(), 2
        node.say(4, 2)
        await node.serve()
        await rig.until(lambda: rig.same)
        assert node.snapshots == 3 and rig.tracked.epoch == 2

    followed(work)


def test_a_node_whose_epoch_changes_as_it_runs_tells_all_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = []
    made = DirectoryService.__init__

    def noted(self: DirectoryService, *given: Any) -> None:
        made(self, *given)
        services.append(self)

    monkeypatch.setattr(DirectoryService, "__init__", noted)

    async def work(rig: Rig) -> None:
        rig.node.say(1, 1)
        await rig.until(lambda: rig.same)
        services[0].epoch = 5
        await rig.until(lambda: rig.tracked.epoch == 5)
        assert rig.same and rig.node.snapshots == 2 and rig.node.follows == 1

    followed(work)


def test_a_stream_that_falls_silent_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_SILENCE_SECONDS", 0.2)

    async def work(rig: Rig) -> None:
        rig.node.say(1, 1)
        await rig.until(lambda: rig.node.follows >= 3)
        await rig.until(lambda: rig.same)
        heard = rig.heard
        await rig.until(lambda: rig.heard > heard)

    followed(work)  # it beats each second, and so is silent for longer than that


def test_a_bug_met_in_what_one_node_says_does_not_leave_it_unfollowed_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(rig: Rig) -> None:
        change = rig.table.change

        def fails(*given: Any) -> int:
            monkeypatch.setattr(rig.table, "change", change)
            change(*given)
            raise RuntimeError("a bug")

        rig.node.say(1, 1)
        await rig.until(lambda: rig.same)
        monkeypatch.setattr(rig.table, "change", fails)
        rig.node.say(2, 1)
        await rig.until(lambda: rig.node.snapshots == 2)
        await rig.until(lambda: rig.same)

    followed(work)


def test_what_a_node_said_while_the_loop_stood_still_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = pb.FollowReply(begin=pb.FollowReply.Begin(node_id="n", epoch=1, snapshot=True))

    class Call:
        """Says something while nobody can listen, and then nothing."""

        def read(self) -> asyncio.Future[pb.FollowReply]:
            loop = asyncio.get_running_loop()
            said: asyncio.Future[pb.FollowReply] = loop.create_future()
            if not rig.heard:
                loop.call_later(0.01, self.stand_still, loop, said)
            return said

        def stand_still(
            self, loop: asyncio.AbstractEventLoop, said: asyncio.Future[pb.FollowReply]
        ) -> None:
            telling = (said.set_result, begin)
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=telling)
            thread.start()
            time.sleep(0.3)
            thread.join()

        def cancel(self) -> None:
            ended.append(rig.heard)

    class Stub:
        def __init__(self, channel: Any) -> None:
            pass

        def Follow(self, request: pb.FollowRequest) -> Call:
            return Call()

    async def run() -> None:
        given = (SystemClock(), random.Random(1), Credentials())
        task = asyncio.create_task(follow(rig.tracked, "127.0.0.1:1", heard, *given))
        await rig.until(lambda: bool(ended))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def heard() -> None:
        rig.heard += 1

    rig, ended = Rig(), list[int]()
    monkeypatch.setattr(module.directory_pb2_grpc, "DirectoryStub", Stub)
    monkeypatch.setattr(module, "FOLLOW_SILENCE_SECONDS", 0.1)
    asyncio.run(run())
    assert ended[0] == 1, "its stream was ended for a silence that there was not"


def test_a_node_for_which_there_is_no_room_is_asked_ever_more_rarely_for_all_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time it would send all of it anew, of which none can be kept."""
    clock = Hurried()

    def full(*_: object) -> int:
        raise Overloaded("the index has all that it may have", 1)

    async def work(rig: Rig) -> None:
        monkeypatch.setattr(rig.table, "add", full)
        rig.node.say(1, 1)
        await rig.until(lambda: len(clock.pauses) >= 8)
        assert clock.pauses[7] >= module.PAUSE_SECONDS_MAX / 2
        monkeypatch.undo()
        await rig.until(lambda: "n" in rig.table)
        before = len(clock.pauses)
        await rig.node.stop()
        await rig.until(lambda: len(clock.pauses) > before)
        assert clock.pauses[before] <= module.PAUSE_SECONDS_MIN, "it was well again"
        await rig.node.serve()

    followed(work, clock)


def test_a_node_that_makes_no_sense_is_asked_again_and_what_it_said_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nonsense(self: DirectoryService, known: int | None, send: Any) -> None:
        begin = pb.FollowReply.Begin(node_id="another", epoch=1, snapshot=True)
        await send(pb.FollowReply(begin=begin))
        await asyncio.Event().wait()

    monkeypatch.setattr(DirectoryService, "follow", nonsense)

    async def work(rig: Rig) -> None:
        await rig.until(lambda: rig.node.follows >= 3)
        assert "n" not in rig.table and rig.heard == 0

    followed(work)
