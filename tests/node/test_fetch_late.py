"""Blocks that are long on their way from another node: what is given up meanwhile, and let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from kvstore.block import Miss
from kvstore.clock import SystemClock
from kvstore.limits import FETCH_PEER_BYTES_MAX
from kvstore.node.fetch import Fetch
from kvstore.node.whereabouts import Listed
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.proxy import Faults
from tests.node.rig import SMALL, TOKENS, Rig, prompt
from tests.node.test_fetch import Pair, held, own
from tests.nodes import LARGE, eventually

__all__ = ["own"]

NOBODY: Any = None


def test_a_holder_that_stalls_costs_a_miss_and_holds_up_nobody(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data):
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        data.to_caller.faults = Faults(stalled=True)
        blocks = own.stored(4, LARGE)
        began = time.monotonic()
        assert own.at_b.get(blocks.between(0, 1), LARGE) == ([pb.UNREACHABLE], [b""])
        assert time.monotonic() - began < 10, "a peer that says nothing is waited for"
        again = time.monotonic()
        assert own.at_b.get(blocks.between(0, 1), LARGE) == ([pb.UNREACHABLE], [b""])
        assert time.monotonic() - again < 10
        data.to_caller.faults = Faults()
        data.reset()
        own.fetched(blocks.between(0, 1), LARGE)  # more there is no room for
    own.at_rest()


def test_what_is_on_its_way_while_it_is_removed_is_not_there_afterwards(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data), ThreadPoolExecutor(1) as thread:
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        blocks = own.stored(1, LARGE)  # 4 MiB: some seconds
        data.to_caller.faults = Faults(bytes_per_second=2_000_000)
        reading = thread.submit(own.b.caller().get, blocks, LARGE)
        eventually(lambda: own.at_a.stats().pins == 1)
        assert own.at_b.ask("Remove", **own.at_b.about(blocks, LARGE)).removed == 1
        data.to_caller.faults = Faults()
        reading.result(60)
        assert own.at_b.match(blocks, LARGE)[0] == 0
    own.at_rest()
    assert own.at_b.match(blocks, LARGE)[0] == 0


def test_nor_is_what_was_on_its_way_to_another_node_while_it_was_removed(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data), ThreadPoolExecutor(1) as thread:
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        blocks = own.stored(1, LARGE)  # 4 MiB: some seconds
        data.to_caller.faults = Faults(bytes_per_second=2_000_000)
        reading = thread.submit(own.b.caller().get, blocks, LARGE)
        eventually(lambda: own.at_a.stats().pins == 1)
        assert own.at_a.ask("Remove", **own.at_a.about(blocks, LARGE)).removed == 1
        data.to_caller.faults = Faults()
        reading.result(60)
    own.at_rest()
    assert own.at_b.match(blocks, LARGE)[0] == own.at_a.match(blocks, LARGE)[0] == 0


def test_a_session_that_ends_while_its_blocks_come_holds_none_of_them(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data), ThreadPoolExecutor(1) as thread:
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        blocks, leaving = own.stored(1, LARGE), own.b.caller()  # 4 MiB: some seconds
        data.to_caller.faults = Faults(bytes_per_second=2_000_000)
        opening = thread.submit(leaving.ask, "Open", **leaving.about(blocks, LARGE))
        eventually(lambda: own.at_a.stats().pins == 1)
        sessions = own.at_b.stats().sessions
        leaving.stream.cancel()
        eventually(lambda: own.at_b.stats().sessions < sessions)
        data.to_caller.faults = Faults()
        with pytest.raises(grpc.RpcError) as refused:
            opening.result(60)
        assert "the session is not known here" in refused.value.details()
        assert held(own.at_b) == (0, 0)
    own.at_rest()


def test_a_trickle_ends_with_its_time_and_its_slots_come_back(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data):
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        blocks = own.stored(1, LARGE)  # 4 MiB: most of a minute, and yet not hung up on
        data.to_caller.faults = Faults(bytes_per_second=100_000)
        fetched = own.at_b.counters()["fetched_blocks"]
        request = pb.GetRequest(**own.at_b.about(blocks, LARGE))

        def goes_on() -> bool:
            """For whoever asks next; asked anew where a busy machine kept a node from its work."""
            try:
                parts = list(own.at_b.kv.Get(request, timeout=2.0))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                return False
            assert len(parts) == 1 and parts[0].block.outcome != pb.HIT, "in time, and no error"
            return own.at_a.stats().pins == 1

        eventually(goes_on)
        began = time.monotonic()
        eventually(lambda: own.at_a.stats().pins == 0, 60)
        assert own.at_b.counters()["fetched_blocks"] == fetched
        assert time.monotonic() - began < 30, "nobody wants it any more"
        data.to_caller.faults = Faults()
        own.fetched(blocks, LARGE)
    own.at_rest()


class Lists:
    """Stands for `Whereabouts`: node a lists all that is asked for, and nobody has more."""

    alone = False

    async def listed(self, keys: Sequence[bytes]) -> Listed:
        tiers = {"a": np.ones(len(keys), np.uint8)} if keys else {}
        return Listed(tiers, np.zeros(len(keys), bool), True)


def test_whose_turn_does_not_come_hears_that_another_node_has_it_and_so_does_who_joins() -> None:
    rig, told = Rig(), dict[str, Miss]()
    others: Any = Lists()
    fetch = Fetch(rig.blocks, rig.arena, NOBODY, others, SystemClock(), rig.counters)
    hashes = prompt(SMALL, 2 * TOKENS).hashes
    keys = rig.store.keys("default", SMALL, hashes)

    async def read(who: str, seconds: float) -> None:
        async with fetch.brought("default", SMALL, hashes, keys, seconds):
            found = rig.blocks.find(keys[0])
            assert isinstance(found, Miss)
            told[who] = found

    async def work() -> None:
        busy = fetch._deliveries._in_flight.turn("a", "default", FETCH_PEER_BYTES_MAX, 60.0)
        async with asyncio.timeout(60.0), busy:
            first = asyncio.create_task(read("first", 0.2))
            await asyncio.sleep(0.05)
            await read("joined", 60.0)
            await first

    asyncio.run(work())
    assert told == {"first": Miss.UNREACHABLE, "joined": Miss.UNREACHABLE}
