"""Whom a node tells that blocks are removed, and how long it waits for its turn at another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from kvstore.metadata.records import NodeRecord
from kvstore.node.replicas import TOLD_MAX, Replicas
from kvstore.node.whereabouts import Listed
from kvstore.wire.v1 import directory_pb2, directory_pb2_grpc

KEYS = [bytes([i]) * 32 for i in range(3)]
SECONDS, LEFT = 20.0, 0.05


def record(name: str) -> NodeRecord:
    return NodeRecord(name, 1, "127.0.0.1:7410", {"dram": 1 << 30}, (), {}, "serving")


class Others:
    """Stands for `Peers`, and for its links: nodes that do as they are told."""

    node_id, directory = "me", directory_pb2_grpc.DirectoryServicer

    def __init__(self, *names: str, resting: Sequence[str] = ()) -> None:
        self._names, self._resting = names, resting
        self.told: dict[str, list[bytes]] = {}
        self.open = asyncio.Event()

    def known(self) -> list[NodeRecord]:
        return [record(one) for one in self._names]

    def resting(self) -> list[NodeRecord]:
        return [record(one) for one in self._resting]

    async def link(self, node_id: str, tenant: str) -> Any:
        others = self

        class Link:
            directory = others.directory

            async def call(self, method: Any, request: Any, *seconds: float) -> Any:
                others.told[node_id] = [*request.stored_keys]
                if isinstance(request, directory_pb2.DropRequest):
                    return directory_pb2.DropReply(dropped=b"\1" * len(request.stored_keys))
                await others.open.wait()
                return directory_pb2.TakeReply(has=b"\1" * len(request.stored_keys))

        return Link()


class Says:
    """Stands for `Whereabouts`: node a lists the first block."""

    def __init__(self, all_said: bool) -> None:
        self._all_said = all_said

    async def listed(self, keys: Sequence[bytes]) -> Listed:
        tiers = np.array([key == KEYS[0] for key in keys], dtype=np.uint8)
        return Listed({"a": tiers}, np.zeros(len(keys), np.bool_), self._all_said)


@pytest.mark.parametrize(
    ("all_said", "told"),
    [
        (True, {"a": KEYS[:2], "b": [KEYS[1]]}),  # the second was read here
        (False, {"a": KEYS, "b": KEYS}),
    ],
)
def test_what_is_removed_is_said_to_who_lists_it_and_to_all_where_that_is_not_known(
    all_said: bool, told: dict[str, list[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> Others:
        others = Others("a", "b", resting=["c"])
        given = (cast(Any, None), cast(Any, others), cast(Any, Says(all_said)), {})
        replicas = Replicas(*given, cast(Any, None))
        await replicas.drop("t", (b"n", 0), KEYS, {KEYS[1]})
        return others

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(run()).told == told
    assert "node c may keep blocks that were removed" in caplog.text


class Gone(list[bytes]):
    """Keys that count how often all of them are gone through."""

    times = 0

    def __iter__(self) -> Iterator[bytes]:
        self.times += 1
        return super().__iter__()


def test_many_nodes_are_told_of_the_same_blocks_by_one_message_and_a_few_at_a_time() -> None:
    async def run() -> None:
        others, messages, now, most = Others(*map(str, range(5 * TOLD_MAX))), set[int](), 0, 0

        async def call(method: Any, request: Any) -> Any:
            nonlocal now, most
            messages.add(id(request))
            now, most = now + 1, max(most, now + 1)
            await asyncio.sleep(0)
            now -= 1
            return directory_pb2.DropReply(dropped=b"\1\0\1")

        link = AsyncMock(return_value=Mock(call=call))
        others.link = link  # type: ignore[method-assign]
        given = (cast(Any, None), cast(Any, others), cast(Any, Says(False)), {})
        keys = Gone(KEYS)
        dropped = await Replicas(*given, cast(Any, None)).drop("t", (b"n", 0), keys, set())
        assert dropped == {KEYS[0], KEYS[2]} and link.await_count == 5 * TOLD_MAX + 1
        assert len(messages) == 1 and most == TOLD_MAX
        assert keys.times <= 4, "however many are told"

    asyncio.run(run())


def test_an_offer_waits_for_its_turn_at_a_node_no_longer_than_it_may_last() -> None:
    async def run() -> None:
        others, nobody = Others("b"), cast(Any, None)
        replicas = Replicas(nobody, cast(Any, others), nobody, {}, nobody)
        whose, late = ("t", (b"n", 0)), set[str]()
        first = asyncio.create_task(replicas.offer("b", whose, KEYS[:1]))
        while not others.told:
            await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            told = await replicas.offer("b", whose, KEYS[1:], seconds=LEFT, late=late)
            assert told == [False, False] and late == {"b"}, "it may take them another time"
            others.open.set()
            assert await first == [True]
            assert await replicas.offer("b", whose, KEYS[1:], seconds=SECONDS) == [True, True]

    asyncio.run(run())
