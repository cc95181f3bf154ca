"""Blocks of one node read at another: whole and right, fetched once, or a miss and never an error.

callers ──▶ node b ──Open, move, Close──▶ node a         every test ends with nothing held at either
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from kvstore.block import Chain, chain
from kvstore.layout import SlotLayout
from kvstore.rpc.channel import open_channel
from kvstore.spec import KVGroup, KVSpec
from kvstore.wire.v1 import admin_pb2, directory_pb2, directory_pb2_grpc
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.proxy import Faults
from tests.nodes import (
    CALL_SECONDS,
    LARGE,
    LAYOUT,
    SPEC,
    Caller,
    NodeProcess,
    eventually,
    mapped,
    payload,
    prompt,
)
from tests.pools import Nodes, pool

KNOWN_SECONDS = 30.0  # far more than it takes on a machine that does nothing else

TWO_GROUPS = KVSpec(
    "two groups",
    "r1",
    "float16",
    (KVGroup((0, 2), 2, 8, block_tokens=4), KVGroup((1,), 1, 16, block_tokens=8)),
)


class Pair:
    """Two nodes that know each other, and a caller at each."""

    def __init__(self, nodes: Nodes, *callers: NodeProcess) -> None:
        self.nodes, (self.a, self.b) = nodes, callers
        self.at_a, self.at_b = self.a.caller(), self.b.caller()
        self._prompts = iter(range(1, 1_000_000))
        for spec in (SPEC, LARGE, TWO_GROUPS):
            self.at_a.register(spec)
        self.fetched(self.stored())

    def new(self, blocks: int = 3, spec: KVSpec = SPEC, last: int = 0) -> Chain:
        return prompt(next(self._prompts), blocks, spec, last)

    def stored(self, blocks: int = 3, spec: KVSpec = SPEC, last: int = 0) -> Chain:
        """A new prompt, at node a."""
        made = self.new(blocks, spec, last)
        assert self.at_a.put(made, spec=spec) == [pb.PutReply.STORED] * blocks
        return made

    def fetched(self, blocks: Chain, spec: KVSpec = SPEC) -> None:
        """Node b has all of it, in time, and every byte."""
        hits = [pb.HIT] * len(blocks)
        found = eventually(lambda: (got := self.at_b.get(blocks, spec))[0] == hits and got, 60)
        sizes = zip(blocks.hashes, blocks.tokens, strict=True)
        assert found[1] == [payload(one, spec, tokens) for one, tokens in sizes]

    def at_rest(self) -> None:
        """Nothing is held by anybody, at either."""
        for caller in (self.at_a, self.at_b):
            eventually(lambda caller=caller: held(caller) == (0, 0), KNOWN_SECONDS)
        for node in (self.a, self.b):
            assert "Traceback" not in node.log, node.log[-4_000:]


def held(caller: Caller) -> tuple[int, int]:
    stats = caller.stats()
    return stats.pins, stats.windows


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with pool() as nodes:
        options = {"dram": "64MiB", "slab": "8MiB"}
        yield Pair(nodes, nodes.node("a", **options), nodes.node("b", **options))


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    """A pair that a test leaves as it found it."""
    yield shared
    shared.at_rest()


@pytest.fixture
def own() -> Iterator[Pair]:
    """A pair that this test may harm: node b has room for few blocks."""
    with pool() as nodes:
        yield Pair(nodes, nodes.node("a", dram="64MiB"), nodes.node("b"))


def test_a_block_put_at_one_node_is_matched_and_got_at_the_other(pair: Pair) -> None:
    blocks = pair.stored(6, last=3)
    eventually(lambda: pair.at_b.match(blocks) == (6, pb.HIT), KNOWN_SECONDS)
    longer = prompt(blocks_number(pair), 2)
    assert pair.at_b.match(longer) == (0, pb.ABSENT)
    asked, all_there = pair.at_b.about(blocks), [pb.HIT] * 6
    eventually(lambda: pair.at_b.ask("Exists", **asked).outcomes == all_there, KNOWN_SECONDS)
    before = pair.at_b.counters()["fetched_blocks"]
    pair.fetched(blocks)
    pair.fetched(blocks)
    assert pair.at_b.counters()["fetched_blocks"] == before + 6, "it came once"


def blocks_number(pair: Pair) -> int:
    return next(pair._prompts)


def test_opened_and_pinned_at_the_other_node_it_is_read_there(pair: Pair) -> None:
    blocks = pair.stored(4, last=1)
    opened = eventually(lambda: all_hits(pair.at_b, blocks), 60)
    read = [pair.at_b.read(handle) for handle in opened.handles]
    assert read == [payload(h, SPEC, n) for h, n in zip(blocks.hashes, blocks.tokens, strict=True)]
    assert list(opened.tokens) == [4, 4, 4, 1]
    pinned = pair.at_b.ask("Pin", **pair.at_b.about(blocks))
    assert list(pinned.outcomes) == [pb.HIT] * 4
    pair.at_b.ask("Close", handles=opened.handles)
    pair.at_b.ask("Unpin", handles=pinned.handles)


def all_hits(caller: Caller, blocks: Chain) -> pb.OpenReply | None:
    """All of them opened, or, where one does not come in time, none."""
    reply = caller.ask("Open", **caller.about(blocks))
    if set(reply.outcomes) == {pb.HIT}:
        return reply
    if held := [one for one in reply.handles if one]:
        caller.ask("Close", handles=held)
    return None


def test_a_fragment_of_any_range_is_read_of_what_was_fetched(pair: Pair) -> None:
    blocks = pair.stored(2)
    opened = eventually(lambda: all_hits(pair.at_b, blocks), 60)
    for layer in range(2):
        for head in range(2):
            part = pb.Fragment(layer_first=layer, layers=1, head_first=head, heads=1)
            for handle, name in zip(opened.handles, blocks.hashes, strict=True):
                at = (2 * layer + head) * 128
                assert pair.at_b.read(handle, part) == payload(name)[at : at + 128]
    pair.at_b.ask("Close", handles=opened.handles)


def test_blocks_of_several_namespaces_and_groups_come_as_what_they_are(pair: Pair) -> None:
    large = pair.stored(2, LARGE, last=77)
    pair.fetched(large, LARGE)
    layout = SlotLayout.of(TWO_GROUPS, 1)
    second = chain(TWO_GROUPS.digest, 1, range(16), 8)
    data = [bytes([i]) * layout.payload_bytes for i in (1, 2)]

    def parts() -> Iterator[pb.PutRequest]:
        for i, one in enumerate(second.hashes):
            block = pb.PutBlock(namespace=TWO_GROUPS.digest, group=1, hash=one, tokens=8)
            block.parent, block.payload_bytes = second.parent(i), len(data[i])
            yield pb.PutRequest(block=block)
            yield pb.PutRequest(data=data[i])

    pair.at_a.kv.Put(parts(), timeout=CALL_SECONDS)
    asked = pb.GetRequest(namespace=TWO_GROUPS.digest, group=1, hashes=second.hashes)

    def got() -> bytes:
        found = list(pair.at_b.kv.Get(asked, timeout=CALL_SECONDS))
        return b"".join(part.data for part in found)

    eventually(lambda: got() == b"".join(data), 60)
    wrong = pb.GetRequest(namespace=TWO_GROUPS.digest, group=0, hashes=second.hashes)
    assert not any(part.data for part in pair.at_b.kv.Get(wrong, timeout=CALL_SECONDS))


def test_ten_callers_that_want_one_block_cost_one_fetch(pair: Pair) -> None:
    callers = [pair.b.caller() for _ in range(10)]

    def had_by_all() -> bool:
        """Unless node a is late, which on a busy machine it may be."""
        blocks, together = pair.stored(4, LARGE), threading.Barrier(10, timeout=CALL_SECONDS)
        eventually(lambda: pair.at_b.match(blocks, LARGE)[0] == 4, KNOWN_SECONDS)
        before = pair.at_b.counters()

        def get(caller: Caller) -> list[bytes]:
            together.wait()
            return caller.get(blocks, LARGE)[1]

        with ThreadPoolExecutor(10) as threads:
            found = list(threads.map(get, callers))
        after = pair.at_b.counters()
        assert after["fetched_blocks"] - before["fetched_blocks"] <= 4
        assert after["duplicate_blocks"] == before["duplicate_blocks"]
        wanted = [payload(one, LARGE) for one in blocks.hashes]
        for had in found:
            assert all(some in (b"", one) for some, one in zip(had, wanted, strict=True))
        return all(one == wanted for one in found)

    eventually(had_by_all, 60)


def test_what_one_call_gets_comes_all_at_once(pair: Pair) -> None:
    with open_channel(pair.b.address) as channel:
        directory = directory_pb2_grpc.DirectoryStub(channel)
        said = directory.Follow(directory_pb2.FollowRequest(), timeout=4 * KNOWN_SECONDS)
        next(said)  # from now on it tells what its link carries

        def came() -> list[int]:
            blocks = pair.stored(40)
            eventually(lambda: pair.at_b.match(blocks)[0] == 40, KNOWN_SECONDS)
            pair.fetched(blocks)
            return next([one.bytes for one in reply.carried] for reply in said if reply.carried)

        eventually(lambda: came() == [40 * LAYOUT.block_bytes(4)], 60)
        said.cancel()


def test_what_the_owner_no_longer_has_is_a_miss_after_one_trip(pair: Pair) -> None:
    blocks = pair.stored(3)
    eventually(lambda: pair.at_b.match(blocks)[0] == 3, KNOWN_SECONDS)
    pair.at_a.ask("Remove", **pair.at_a.about(blocks))
    outcomes, found = pair.at_b.get(blocks)
    assert outcomes == [pb.ABSENT] * 3 and found == [b""] * 3, "it was reached, and said so"


def test_bytes_that_rotted_in_the_holders_memory_are_a_miss_here_and_dropped_there(
    pair: Pair,
) -> None:
    blocks = pair.stored(2)
    opened = pair.at_a.ask("Open", **pair.at_a.about(blocks))
    with mapped(pair.at_a) as arena:
        arena.view[opened.slot_offsets[0] + LAYOUT.head_bytes + 100] ^= 4
    pair.at_a.ask("Close", handles=opened.handles)
    damaged = pair.at_a.counters()["damaged_blocks"]
    eventually(lambda: pair.at_b.match(blocks)[0] == 2, KNOWN_SECONDS)

    def found_damaged() -> bool:
        outcomes, found = pair.at_b.get(blocks)
        assert outcomes[0] != pb.HIT and found[0] == b""
        return pair.at_a.counters()["damaged_blocks"] == damaged + 1

    eventually(found_damaged, KNOWN_SECONDS)
    assert pair.at_a.get(blocks)[0][0] == pb.DAMAGED


def test_bits_that_flip_on_the_way_never_land(own: Pair) -> None:
    with own.nodes.behind(own.a) as (_, data):
        eventually(lambda: own.fetched(own.stored()) or data.accepted, 60)
        damaged = own.at_a.counters()["damaged_blocks"]
        data.to_caller.faults = Faults(flip_rate=1 / 2_000)
        rounds = whole = 0

        def seen_enough() -> bool:
            nonlocal rounds, whole
            rounds += 1
            blocks = own.stored(8)
            outcomes, found = own.at_b.get(blocks)
            for one, outcome, got in zip(blocks.hashes, outcomes, found, strict=True):
                assert got == (payload(one) if outcome == pb.HIT else b"")
                whole += outcome == pb.HIT
            return rounds >= 40 and data.to_caller.flipped > 20 and whole > 0

        eventually(seen_enough, 60)
        data.to_caller.faults = Faults()
        assert own.at_a.counters()["damaged_blocks"] == damaged, "the owner's blocks are good"
    own.at_rest()


def test_a_full_node_takes_what_it_can_and_the_rest_are_misses(own: Pair) -> None:
    pinned = own.b.caller()
    large = own.new(1, LARGE)  # a slab of the two that there are
    pinned.put(large, spec=LARGE)
    handles = pinned.ask("Pin", **pinned.about(large, LARGE)).handles
    blocks = own.stored(1_200)
    eventually(lambda: own.at_b.match(blocks)[0] == 1_200, KNOWN_SECONDS)

    def some_opened() -> Any:
        reply = own.at_b.ask("Open", **own.at_b.about(blocks))
        return pb.HIT in reply.outcomes and reply

    opened = eventually(some_opened, 60)
    hits = [i for i, one in enumerate(opened.outcomes) if one == pb.HIT]
    assert len(hits) <= 1_024, "the other slab holds so many"
    some = hits[:: max(1, len(hits) // 10)]
    assert all(own.at_b.read(opened.handles[i]) == payload(blocks.hashes[i]) for i in some)
    own.at_b.ask("Close", handles=[opened.handles[i] for i in hits])
    pinned.ask("Unpin", handles=handles)
    own.at_rest()


def test_whole_blocks_or_misses_while_the_owner_evicts_removes_and_purges(own: Pair) -> None:
    stop, hits = threading.Event(), 0

    def churn() -> None:
        caller, number = own.a.caller(), 10**6
        while not stop.is_set():
            some = [prompt(number + i, 6) for i in range(4)]
            for blocks in some:
                caller.put(blocks)
            caller.ask("Remove", **caller.about(some[0]))
            if number % 400 == 0:
                request = admin_pb2.PurgeRequest(namespace=SPEC.digest.hex())
                list(caller.admin.Purge(request, timeout=CALL_SECONDS))  # it is over at their end
            number += 4

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        began = time.monotonic()
        while time.monotonic() < began + (4.0 if hits else 60.0):
            try:
                blocks = own.stored(6)
            except grpc.RpcError as error:
                assert "a purge took it" in error.details()
                continue
            outcomes, found = own.at_b.get(blocks)
            for one, outcome, got in zip(blocks.hashes, outcomes, found, strict=True):
                assert got == (payload(one) if outcome == pb.HIT else b"")
                hits += outcome == pb.HIT
    finally:
        stop.set()
        thread.join(60)
    assert hits, "the test sees nothing"
    own.at_rest()


def test_what_was_fetched_is_served_by_this_node_alone(own: Pair) -> None:
    blocks, other = own.stored(5, last=2), own.stored(5)
    own.fetched(blocks)
    own.a.kill()
    own.fetched(blocks)
    began = time.monotonic()
    assert pb.HIT not in own.at_b.get(other.between(0, 1))[0]
    assert time.monotonic() - began < 10, "it waits for the dead"
    assert held(own.at_b) == (0, 0)


def test_blocks_of_a_quarantined_namespace_are_never_fetched(own: Pair) -> None:
    blocks = own.stored(3)
    own.at_b.ask("Quarantine", namespace=SPEC.digest, reason="wrong logits")
    before = own.at_b.counters()["fetched_blocks"]
    assert own.at_b.get(blocks)[0] == [pb.QUARANTINED] * 3
    assert own.at_b.match(blocks) == (0, pb.QUARANTINED)
    assert own.at_b.counters()["fetched_blocks"] == before


def test_a_draining_node_still_gives_what_it_has_until_it_ends(own: Pair) -> None:
    blocks, writer = own.stored(3), own.a.caller()
    reserved = writer.reserve(own.new())
    assert reserved.handles, "an open window holds the node up"
    own.a.signal(15)
    outcomes, found = own.at_b.get(blocks)
    for one, outcome, got in zip(blocks.hashes, outcomes, found, strict=True):
        assert got == (payload(one) if outcome == pb.HIT else b"")
    own.a.wait(30)
    assert pb.HIT not in own.at_b.get(own.new())[0]
    assert held(own.at_b) == (0, 0)
