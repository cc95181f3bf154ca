"""Nodes with slow links, while what is written there is followed: the others' readers go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kvstore.node import follow as module
from kvstore.node.follow import LOOKS_OF_ALL_MAX, Asked, Follow
from kvstore.node.pool import THREADS
from kvstore.transfer.calls import Looked
from kvstore.transfer.frames import Found
from kvstore.transfer.protocol import Ints, Mask
from tests.node.rig import SMALL, Rig
from tests.node.test_follow_hung import BLOCKS, Writer, following, soon

LAYERS = SMALL.layout.layers


class Writers:
    """Stands for `Peers`: each of its nodes hangs."""

    def __init__(self, names: list[str]) -> None:
        self.by = {name: Writer(hangs=True) for name in names}
        self.failed = Counter[str]().update

    async def link(self, node_id: str, tenant: str) -> Any:
        return self.by[node_id]

    def by_name(self, name: str) -> str | None:
        return name

    def gone(self, name: str) -> bool:
        return False

    @property
    def working(self) -> int:
        return sum(one.working for one in self.by.values())


class Written(Writer):
    """All layers of its blocks are there at once. What is brought of them is remembered, or is
    long on its way."""

    found = Found.FILLING

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(hangs=hangs)
        self.brought, self.ended = list[list[int]](), 0
        self.waits = False  # for a thread, whatever is to be brought

    async def in_thread(self, work: Any, *given: Any, term: Any = None) -> Any:
        if work == "look":
            count = len(given[0].handles)
            return Looked(np.full(count, self.found, np.uint8), np.full(count, LAYERS))
        rows: Ints = given[0]
        self.brought.append(rows.tolist())
        if self._hangs:
            term.waits = self.waits
            try:
                await self.fails.wait()
            finally:
                self.ended += 1
        good: Mask = np.ones(len(rows), bool)
        return good


def test_those_that_follow_hold_some_of_the_threads_whatever_the_nodes_they_follow() -> None:
    async def main() -> None:
        rig, peers = Rig(slabs=16), Writers([f"writer {i}" for i in range(5)])
        others: Any = peers
        follow, number = Follow(rig.blocks, rig.arena, others, *rig.following), 0
        for name, writer in peers.by.items():
            writer.node_id = name
            for _ in range(BLOCKS):
                number += 1
                keys = [bytes([number]) * 32]
                asked = Asked("default", SMALL, keys, keys, (), "group", name)
                assert (await follow.local(asked))[0], "the test follows nothing"
        await soon()
        assert peers.working == LOOKS_OF_ALL_MAX < THREADS
        await follow.close()
        assert peers.working == 0 and not rig.blocks.arriving

    asyncio.run(main())


def test_a_node_that_is_too_slow_is_followed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_SECONDS_MAX", 0.05)

    async def main() -> None:
        rig, writer = Rig(slabs=4), Written(hangs=True)
        failed = list[str]()
        writer.failed = failed.append  # type: ignore[assignment]
        await following(rig, writer)
        async with asyncio.timeout(20.0):
            while rig.blocks.arriving:
                await asyncio.sleep(0.01)
        assert writer.ended == len(writer.brought) > 0 and not writer.alive
        assert set(failed) == {writer.node_id}

    asyncio.run(main())


def test_a_node_to_which_no_thread_of_this_one_came_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FETCH_SECONDS_MAX", 0.05)

    async def main() -> None:
        rig, writer = Rig(slabs=4), Written(hangs=True)
        failed = list[str]()
        writer.waits, writer.failed = True, failed.append  # type: ignore[assignment]
        await following(rig, writer)
        async with asyncio.timeout(20.0):
            while rig.blocks.arriving:
                await asyncio.sleep(0.01)
        assert writer.alive and not failed

    asyncio.run(main())


def test_what_many_blocks_gained_comes_in_pieces_that_each_have_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FETCH_STRIPE_BYTES_MAX", 5 * SMALL.layout.sent_bytes)

    async def main() -> None:
        rig, writer = Rig(slabs=4), Written(hangs=False)
        others: Any = writer
        follow = Follow(rig.blocks, rig.arena, others, *rig.following)
        keys = [bytes([number]) * 32 for number in range(BLOCKS)]
        asked = Asked("default", SMALL, keys, keys, (), "group", writer.node_id)
        assert all(await follow.local(asked)), "the test follows nothing"
        await soon()
        assert writer.brought == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
        await follow.close()

    asyncio.run(main())
