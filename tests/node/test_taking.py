"""What a node takes at another's word: what it lacks and has a use for, one batch of each source at
a time, and nothing twice that is on its way already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvstore.core.lifecycle import Slot
from kvstore.errors import (
    Draining,
    Invalid,
    KVStoreError,
    Overloaded,
    Quarantined,
)
from kvstore.limits import TAKE_BLOCKS_MAX, TAKES_MAX
from kvstore.node.delivery import Wanted
from kvstore.node.fetch import BEHIND_SECONDS_MAX, Fetch
from kvstore.node.replicas import Replicas
from kvstore.node.taking import PIECE_BLOCKS, Offer, Taking
from kvstore.node.whereabouts import Listed
from kvstore.wire.v1 import directory_pb2_grpc
from tests.node.rig import SMALL, TOKENS, Rig, prompt

SOON = 20.0  # seconds; nothing here waits for real time but by mistake


class Source:
    """Stands for `Fetch`: brings what it has of what is wanted, once it may."""

    def __init__(self, rig: Rig, has: Sequence[bytes]) -> None:
        self._rig, self._has = rig, has
        self.open = asyncio.Event()
        self.open.set()
        self.asked: list[list[bytes]] = []

    async def take(self, holder: str, wanted: Wanted) -> None:
        self.asked.append([*wanted.keys])
        await self.open.wait()
        for key in wanted.keys:
            if key in self._has:
                one = (key, b"", TOKENS)
                arriving, told = self._rig.blocks.arriving, ([one], "default", (), [0])
                [slot] = arriving.begin(SMALL.owner, SMALL.layout, *told)
                self._rig.write(slot, SMALL)
                arriving.end([slot], SMALL.layout, whole=True)


class Known:
    """Stands for `Peers`: everybody may be asked but `stranger`, and no link is ever made."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = asyncio.Event()

    def may_ask(self, node_id: str) -> bool:
        return node_id != "stranger"

    async def link(self, node_id: str, tenant: str) -> Any:
        self.asked.append(node_id)
        await self.open.wait()
        raise Overloaded("this is no node", 1)

    def failed(self, node_id: str) -> None: ...


def keys_of(count: int, start: int = 0) -> list[bytes]:
    return [bytes([1]) * 28 + (start + i).to_bytes(4, "big") for i in range(count)]


def offer(keys: Sequence[bytes], source: str = "a", **more: Any) -> Offer:
    return Offer("default", SMALL, source, keys, **more)


def taking(rig: Rig, fetch: Any) -> Taking:
    return Taking(rig.store, fetch, Known(), None, rig.counters)  # type: ignore[arg-type]


async def soon(what: Any) -> Any:
    async with asyncio.timeout(60.0):
        return await what


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def refused(rig: Rig, kind: type[KVStoreError], one: Offer, text: str) -> None:
    source = Source(rig, one.keys)
    with pytest.raises(kind, match=text):
        asyncio.run(soon(taking(rig, source).take(one, SOON)))
    assert source.asked == []


def test_what_is_lacking_is_taken_in_small_pieces_and_the_answer_says_what_is_here() -> None:
    async def run() -> None:
        rig = Rig(slabs=16)
        keys = keys_of(PIECE_BLOCKS + 2)
        source = Source(rig, keys[:-1])
        await soon(taking(rig, source).take(offer(keys[:1]), SOON))
        has = await soon(taking(rig, source).take(offer(keys), SOON))
        assert has == [True] * (len(keys) - 1) + [False]
        assert source.asked == [keys[:1], keys[1 : PIECE_BLOCKS + 1], keys[PIECE_BLOCKS + 1 :]]
        assert rig.counters.totals()["taken_blocks"] == len(keys) - 1

    asyncio.run(run())


def test_one_call_moves_no_more_than_it_may() -> None:
    async def run() -> None:
        rig = Rig(slabs=TAKE_BLOCKS_MAX // 4 + 16)
        keys = keys_of(TAKE_BLOCKS_MAX + 40)
        source = Source(rig, keys)
        has = await soon(taking(rig, source).take(offer(keys), SOON))
        assert sum(map(len, source.asked)) == sum(has) == TAKE_BLOCKS_MAX

    asyncio.run(run())


def test_a_source_of_which_nothing_comes_is_asked_for_no_more() -> None:
    async def run() -> None:
        rig = Rig()
        source = Source(rig, ())
        keys = keys_of(3 * PIECE_BLOCKS)
        assert not any(await soon(taking(rig, source).take(offer(keys), SOON)))
        assert source.asked == [keys[:PIECE_BLOCKS]]

    asyncio.run(run())


def test_a_node_refuses_what_it_will_not_keep() -> None:
    some = offer(keys_of(1))
    rig = Rig()
    refused(rig, Overloaded, replace(some, source="stranger"), "stranger is not known here")
    refused(rig, Invalid, replace(some, durable=True), "this node has no SSD")
    rig.store.quarantined = {SMALL.owner[0]}
    refused(rig, Quarantined, some, "gave wrong KV")
    rig.store.draining = True
    refused(rig, Draining, some, "ask another")


def test_a_node_that_comes_to_leave_takes_no_more_and_says_of_nothing_that_it_has_it() -> None:
    """Its source, which may leave too, asks another: what is here goes with this node."""

    async def run() -> None:
        rig = Rig(slabs=16)
        keys = keys_of(2 * PIECE_BLOCKS)
        source = Source(rig, keys)
        source.open.clear()
        task = asyncio.create_task(taking(rig, source).take(offer(keys), SOON))
        await turns()
        rig.store.draining = True
        source.open.set()
        with pytest.raises(Draining, match="ask another"):
            await soon(task)
        assert source.asked == [keys[:PIECE_BLOCKS]]

    asyncio.run(run())


class AtSource:
    """Stands for `Peers` of a node that offers blocks, and for its links to the one that takes."""

    node_id, directory = "stranger", directory_pb2_grpc.DirectoryServicer

    def __init__(self, other: Taking) -> None:
        self._other, self.held_for_dead = other, list[str]()

    async def link(self, node_id: str, tenant: str) -> AtSource:
        return self

    async def call(self, method: Any, request: Any, seconds: float) -> Any:
        await self._other.take(offer(request.stored_keys, request.source), seconds)

    def failed(self, node_id: str) -> None:
        self.held_for_dead.append(node_id)


def test_a_node_that_cannot_ask_the_source_is_not_held_for_dead_by_it() -> None:
    """It knows it no more, or leaves it alone for a moment; its own blocks can be read."""

    async def run() -> None:
        rig = Rig()
        peers: Any = AtSource(taking(rig, Source(rig, ())))
        unasked: Any = None
        replicas = Replicas(rig.store, peers, unasked, {}, rig.counters)
        whose = ("default", SMALL.owner)
        assert await soon(replicas.offer("b", whose, keys_of(1))) == [False]
        assert peers.held_for_dead == []

    asyncio.run(run())


def test_of_each_source_one_batch_is_taken_at_a_time_and_of_all_a_few() -> None:
    async def run() -> None:
        rig = Rig()
        source = Source(rig, keys_of(64))
        source.open.clear()
        node, going = taking(rig, source), []

        async def is_refused(name: str) -> None:
            with pytest.raises(Overloaded, match="taking what was offered before"):
                await soon(node.take(offer(keys_of(1, 50), source=name), SOON))

        for i in range(TAKES_MAX):
            one = replace(offer(keys_of(1, i), source=f"node {i}"), tenant=f"tenant {i}")
            going.append(asyncio.create_task(node.take(one, SOON)))
            await turns()
            await is_refused(f"node {i}")
        await is_refused("one more")
        source.open.set()
        await soon(asyncio.gather(*going))
        assert len(source.asked) == TAKES_MAX
        assert await soon(node.take(offer(keys_of(1, 50), source="node 0"), SOON)) == [True]

    asyncio.run(run())


def test_no_tenant_takes_all_the_places_for_what_is_offered() -> None:
    async def run() -> None:
        rig = Rig()
        source = Source(rig, ())
        source.open.clear()
        node, going = taking(rig, source), []
        for i in range(TAKES_MAX * 3 // 4):
            one = offer(keys_of(1, i), source=f"node {i}")
            going.append(asyncio.create_task(node.take(one, SOON)))
            await turns()
        with pytest.raises(Overloaded, match="taking what was offered before"):
            await soon(node.take(offer(keys_of(1, 50), source="one more"), SOON))
        other = replace(offer(keys_of(1, 51), source="one more"), tenant="other")
        going.append(asyncio.create_task(node.take(other, SOON)))
        await turns()
        assert source.asked[-1] == keys_of(1, 51)
        source.open.set()
        await soon(asyncio.gather(*going))

    asyncio.run(run())


def test_a_source_that_stands_still_is_waited_for_no_longer_than_the_call_lasts() -> None:
    async def run() -> None:
        rig = Rig()
        source = Source(rig, keys_of(1))
        source.open.clear()
        node = taking(rig, source)
        assert await soon(node.take(offer(keys_of(1)), 0.01)) == [False]
        source.open.set()
        assert await soon(node.take(offer(keys_of(1)), SOON)) == [True], "its place is free again"

    asyncio.run(run())


class Late:
    """Stands for `Tiers` of a disk that writes nothing any more."""

    async def durable(self, slots: Sequence[Slot]) -> None:
        await asyncio.Event().wait()


def test_a_disk_that_is_late_is_waited_for_no_longer_than_the_call_lasts() -> None:
    async def run() -> None:
        rig = Rig()
        source = Source(rig, keys_of(1))
        node = Taking(rig.store, source, Known(), Late(), rig.counters)  # type: ignore[arg-type]
        async with asyncio.timeout(SOON):
            assert await node.take(offer(keys_of(1), durable=True), 0.1) == [False]
        assert await soon(node.take(offer(keys_of(1)), SOON)) == [True]

    asyncio.run(run())


def test_a_full_node_takes_what_is_worth_more_than_what_it_would_lose() -> None:
    async def run(worth: float) -> list[bool]:
        rig = Rig()
        me = rig.session()
        for number in range(16):
            rig.put(me, SMALL, prompt(SMALL, TOKENS, number))
        assert rig.blocks.would_lose(SMALL.owner, "default", SMALL.layout) == 0.0
        source = Source(rig, keys_of(1))
        found: list[bool] = await soon(
            taking(rig, source).take(offer(keys_of(1), worth=[worth]), SOON)
        )
        return found

    assert asyncio.run(run(0.5)) == [True]
    assert asyncio.run(run(0.0)) == [False]


def test_what_is_worth_little_keeps_nothing_behind_it_from_being_taken() -> None:
    async def run() -> None:
        rig = Rig()
        me, keys = rig.session(), keys_of(3)
        for number in range(16):
            rig.put(me, SMALL, prompt(SMALL, TOKENS, number))
        source = Source(rig, keys)
        one = offer(keys, worth=[0.9, -1.0, 0.9])
        assert await soon(taking(rig, source).take(one, SOON)) == [True, False, True]
        assert source.asked == [[keys[0], keys[2]]]

    asyncio.run(run())


class All:
    """Stands for `Whereabouts`: node a lists everything."""

    alone = False

    async def listed(self, keys: Sequence[bytes]) -> Listed:
        there = np.ones(len(keys), dtype=np.uint8)
        return Listed({"a": there}, np.zeros(len(keys), np.bool_), True)


def test_what_a_reader_waits_for_is_not_brought_a_second_time_and_goes_first() -> None:
    async def run() -> None:
        rig, peers = Rig(), Known()
        fetch = Fetch(rig.blocks, rig.arena, peers, All(), rig.clock, rig.counters)  # type: ignore[arg-type]
        mine, others = keys_of(2), keys_of(1, 9)

        async def read() -> None:
            async with fetch.brought("default", SMALL, mine, mine, SOON):
                pass

        def take(keys: list[bytes]) -> asyncio.Task[None]:
            wanted = Wanted("default", SMALL, (), keys, frozenset(keys))
            return asyncio.create_task(fetch.take("b", wanted))

        reader = asyncio.create_task(read())
        await turns()
        assert peers.asked == ["a"]
        same, more = take(mine), take(others)
        await rig.clock.advance(BEHIND_SECONDS_MAX / 2)
        assert peers.asked == ["a"], "a take does not wait for the reader"
        await rig.clock.advance(BEHIND_SECONDS_MAX)
        assert peers.asked == ["a", "b"], "a take waits for readers for ever, or brings it twice"
        assert not same.done() and not more.done()
        peers.open.set()
        await soon(asyncio.gather(same, more, reader))
        await fetch.close()

    asyncio.run(run())
