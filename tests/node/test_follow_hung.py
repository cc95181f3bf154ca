"""A node that hangs, or is slow, while many blocks that are written there are followed.

writers ──▶ node a, hung ──look──▶ node b ◀──fetch── node c, well
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.errors import Unavailable
from kvstore.node.follow import LATER_SECONDS, LOOKS_MAX, Asked, Follow
from kvstore.transfer.calls import Looked
from kvstore.transfer.frames import Found
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig
from tests.node.rig import prompt as rig_prompt
from tests.node.test_arriving import room_looked_for
from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import eventually, prompt
from tests.pools import pool

BLOCKS = 12
SOON = 100  # turns of the loop in which all has happened that can


class Writer:
    """Stands for `Peers` and for the `Link` to a node at which all blocks are being written. Its
    data connections answer at once, or hang until a test has them fail."""

    node_id, session = "writer", b"session"

    def __init__(self, *, hangs: bool) -> None:
        self.kv = SimpleNamespace(Open="Open", Close="Close")
        self.lanes = SimpleNamespace(look="look")
        self.alive, self.fails = True, asyncio.Event()
        self.looks = Counter[bytes]()  # by handle
        self.working, self.most = 0, 0  # threads
        self.failed = Counter[str]().update
        self._hangs = hangs

    async def link(self, node_id: str, tenant: str) -> Any:
        return self

    def by_name(self, name: str) -> str | None:
        return name

    def gone(self, name: str) -> bool:
        return False

    def give_up(self) -> None:
        self.alive = False

    async def call(self, method: str, request: Any) -> Any:
        if method == "Close":
            return pb.CloseReply()
        count = len(request.hashes)
        return pb.OpenReply(
            outcomes=[pb.HIT] * count,
            slot_offsets=[0] * count,
            generations=[1] * count,
            tokens=[TOKENS] * count,
            roots=[b""] * count,
            handles=request.hashes,
            parents=[b""] * count,
            origins=[0] * count,
        )

    async def in_thread(self, work: str, slots: Any, *_: Any, **__: Any) -> Looked:
        self.working += 1
        self.most = max(self.most, self.working)
        self.looks.update(slots.handles.tolist())
        try:
            await (self.fails.wait() if self._hangs else asyncio.sleep(0))
        finally:
            self.working -= 1
        if self._hangs:
            raise Unavailable("it moves no byte")
        count = len(slots.handles)
        return Looked(np.full(count, Found.FILLING, np.uint8), np.zeros(count, np.int64))


async def soon() -> None:
    for _ in range(SOON):
        await asyncio.sleep(0)


async def following(rig: Rig, writer: Any) -> Follow:
    """All of its blocks, each for a request of its own."""
    given = (rig.blocks, rig.arena, writer, *rig.following)
    follow, names = Follow(*given), [bytes([i]) * 32 for i in range(BLOCKS)]
    for name in names:
        asked = Asked("default", SMALL, [name], [name], (), "group", writer.node_id)
        assert (await follow.local(asked))[0], "the test follows nothing"
    await soon()
    return follow


def test_a_node_that_hangs_takes_few_threads_and_whoever_waits_for_one_gives_up_with_it() -> None:
    async def main() -> None:
        rig, writer = Rig(slabs=4), Writer(hangs=True)
        await following(rig, writer)
        assert writer.working == LOOKS_MAX < BLOCKS == len(rig.blocks.arriving)
        writer.fails.set()
        await soon()
        assert writer.looks.total() == LOOKS_MAX and not writer.alive
        assert not rig.blocks.arriving, "readers of all of them are told"

    asyncio.run(main())


def test_all_that_is_followed_at_a_node_that_answers_is_looked_at_by_few_threads() -> None:
    async def main() -> None:
        rig, writer = Rig(slabs=4), Writer(hangs=False)
        follow = await following(rig, writer)
        for _ in range(5):
            await rig.clock.advance(LATER_SECONDS)
            await soon()
        assert len(writer.looks) == BLOCKS and min(writer.looks.values()) >= 3
        assert writer.most <= LOOKS_MAX and len(rig.blocks.arriving) == BLOCKS
        await follow.close()

    asyncio.run(main())


def test_what_is_cancelled_while_it_waits_for_a_thread_or_has_one_leaves_both_to_others() -> None:
    async def main() -> None:
        rig, writer = Rig(slabs=4), Writer(hangs=True)
        follow = await following(rig, writer)
        tasks = sorted(follow._tasks, key=lambda task: int(task.get_name().split("-")[1]))
        for task in tasks[1 : LOOKS_MAX + 2]:  # some that have one, and two that are next
            task.cancel()
        await soon()
        assert writer.looks.total() == 2 * LOOKS_MAX - 1 and writer.working == LOOKS_MAX
        await follow.close()
        assert writer.working == 0 and not rig.blocks.arriving

    asyncio.run(main())


def test_blocks_of_a_node_that_is_well_come_while_another_hangs_that_many_follow() -> None:
    with pool() as nodes:
        roomy = {"program": "tests.unhurried", "dram": "64MiB", "slab": "8MiB"}
        pair = Pair(nodes, nodes.node("a", **roomy), nodes.node("b", **roomy))
        well = nodes.node("c", "tests.unhurried").caller()
        chains = [prompt(5_000_000 + number, 1) for number in range(6)]
        for one in chains:
            well.put(one)
        eventually(lambda: pair.at_b.get(chains[0])[0] == [pb.HIT], KNOWN_SECONDS)

        def opened(about: dict[str, Any], hand_offs: Any) -> bool:
            reply = pair.at_b.ask("Open", **about, hand_offs=hand_offs)
            return bool(reply.outcomes[0] == pb.HIT)

        for number in range(96):
            blocks = prompt(6_000_000 + number, 1)
            asked = pair.at_b.about(blocks), pair.at_a.reserve(blocks, hand_off=True).hand_offs
            eventually(lambda asked=asked: opened(*asked), KNOWN_SECONDS)
        pair.a.signal(signal.SIGSTOP)
        try:
            assert [pair.at_b.get(one)[0] for one in chains[1:]] == [[pb.HIT]] * 5
        finally:
            pair.a.signal(signal.SIGCONT)


def test_a_prompt_that_is_followed_is_given_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        rig, writer = Rig(slabs=4), Writer(hangs=False)
        counts = room_looked_for(monkeypatch)
        given = (rig.blocks, rig.arena, writer, *rig.following)
        follow = Follow(*given)
        hashes = rig_prompt(SMALL, BLOCKS * TOKENS).hashes
        keys = rig.store.keys("default", SMALL, hashes)
        handles = await follow.local(Asked("default", SMALL, hashes, keys, (), "group", "writer"))
        assert all(handles) and counts == [BLOCKS]
        assert rig.blocks.filling.keys() == {*keys} and len(rig.blocks.arriving) == BLOCKS
        await follow.close()

    asyncio.run(main())
