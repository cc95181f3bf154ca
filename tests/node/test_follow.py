"""A block that is being written at one node, read at another layer by layer.

writer ──layer──▶ node a ──look, move──▶ node b ──layer──▶ readers
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import grpc
import numpy as np
import pytest

from kvstore.block import Chain
from kvstore.client.space import slots_of
from kvstore.errors import Unavailable
from kvstore.layout import IDENTITY_OFFSET, Fragment, SlotLayout
from kvstore.node.follow import Asked, Follow, _Run
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.landing import IDENTITY_BYTES
from kvstore.transfer.protocol import Slots
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.holder import Holder, cancelled_while_it_asks
from tests.node.rig import SMALL, TOKENS, Rig
from tests.node.rig import prompt as rig_prompt
from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import LARGE, LAYOUT, Caller, eventually, payload, prompt, refused
from tests.pools import pool

LAYER = [pb.Fragment(layer_first=layer, layers=1) for layer in range(2)]
HALF = LAYOUT.payload_bytes // 2


class HandOff:
    """A writer at node a with one block, and the hand-off that it gives away."""

    def __init__(self, pair: Pair, writer: Caller | None = None) -> None:
        self.pair, self.writer = pair, writer or pair.a.caller()
        self.blocks: Chain = pair.new(1)
        self.data = payload(self.blocks.hashes[0])
        window = self.writer.reserve(self.blocks, hand_off=True)
        self.window, self.hand_offs = window.handles[0], window.hand_offs

    def write(self, layer: int) -> None:
        data = self.data[layer * HALF : (layer + 1) * HALF]
        self.writer.write(self.window, data, LAYER[layer])

    def seal(self) -> None:
        self.writer.ask("Seal", handles=[self.window])

    def opened(self, reader: Caller) -> bytes:
        """The handle of a reader at node b."""

        def open_it() -> bytes:
            reply = reader.ask("Open", **reader.about(self.blocks), hand_offs=self.hand_offs)
            return bytes(reply.handles[0]) if reply.outcomes[0] == pb.HIT else b""

        return bytes(eventually(open_it, KNOWN_SECONDS))


class Reading:
    """A Read of a whole block, in a thread, layer after layer."""

    def __init__(self, reader: Caller, handle: bytes) -> None:
        self.came, self.error = b"", None
        self._reader, self._handle = reader, handle
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        request = pb.ReadRequest(session=self._reader.session, handle=self._handle)
        try:
            for part in self._reader.kv.Read(request, timeout=60):
                self.came += part.data
        except grpc.RpcError as error:
            self.error = error

    def end(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.came


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with pool() as nodes:
        yield Pair(nodes, *(nodes.node(name, "tests.unhurried") for name in "ab"))


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    shared.at_rest()


def test_a_reader_elsewhere_has_each_layer_once_it_is_written(pair: Pair) -> None:
    hand_off = HandOff(pair)
    reading = Reading(pair.at_b, handle := hand_off.opened(pair.at_b))
    time.sleep(0.05)
    assert reading.came == b"", "nothing is written yet"
    hand_off.write(0)
    eventually(lambda: reading.came == hand_off.data[:HALF], KNOWN_SECONDS)
    hand_off.write(1)
    assert reading.end() == hand_off.data and reading.error is None
    hand_off.seal()
    pair.at_b.ask("Close", handles=[handle])
    eventually(lambda: pair.at_b.match(hand_off.blocks) == (1, pb.HIT), KNOWN_SECONDS)
    eventually(lambda: pair.at_b.counters()["followed_blocks"] >= 1, KNOWN_SECONDS)
    pair.fetched(hand_off.blocks)


def test_two_readers_of_one_hand_off_cost_one_transfer(pair: Pair) -> None:
    hand_off, other = HandOff(pair), pair.b.caller()
    handles = [hand_off.opened(reader) for reader in (pair.at_b, other)]
    sent = pair.at_a.counters()["data_sent_bytes"]
    readings = [
        Reading(reader, handle) for reader, handle in zip((pair.at_b, other), handles, strict=True)
    ]
    for layer in range(2):
        hand_off.write(layer)
    assert [one.end() for one in readings] == [hand_off.data] * 2
    hand_off.seal()
    for reader, handle in zip((pair.at_b, other), handles, strict=True):
        reader.ask("Close", handles=[handle])
    head = LAYOUT.root_bytes + 8
    assert pair.at_a.counters()["data_sent_bytes"] - sent <= len(hand_off.data) + 2 * head + 64


@pytest.mark.parametrize("how", ["aborts", "dies"])
def test_a_writer_that_does_not_end_its_block_leaves_readers_elsewhere_with_a_miss(
    pair: Pair, how: str
) -> None:
    hand_off = HandOff(pair)
    handle = hand_off.opened(pair.at_b)
    hand_off.write(0)
    reading = Reading(pair.at_b, handle)
    eventually(lambda: len(reading.came) == HALF, KNOWN_SECONDS)
    if how == "aborts":
        hand_off.writer.ask("Abort", handles=[hand_off.window])
    else:
        hand_off.writer.stream.cancel()
    assert reading.end() == hand_off.data[:HALF]
    assert reading.error is not None and reading.error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert pair.at_b.get(hand_off.blocks)[0] != [pb.HIT]
    pair.at_b.ask("Close", handles=[handle])


def test_a_writer_that_seals_a_duplicate_serves_its_hand_off_all_the_same(pair: Pair) -> None:
    hand_off = HandOff(pair)
    handle = hand_off.opened(pair.at_b)
    first = bytes(reversed(hand_off.data))
    assert pair.at_a.put(hand_off.blocks, [first]) == [pb.PutReply.STORED]
    reading = Reading(pair.at_b, handle)
    hand_off.write(0)
    hand_off.write(1)
    eventually(lambda: len(reading.came) == 2 * HALF or reading.error, KNOWN_SECONDS)
    reply = hand_off.writer.ask("Seal", handles=[hand_off.window])
    assert list(reply.sealed) == [pb.SealReply.EXISTED]
    assert reading.end() == hand_off.data, "layers of one writer only"
    pair.at_b.ask("Close", handles=[handle])
    eventually(lambda: pair.at_b.get(hand_off.blocks)[1] == [first], KNOWN_SECONDS)


def test_a_reader_that_goes_takes_what_it_followed_along(pair: Pair) -> None:
    hand_off, reader = HandOff(pair), pair.b.caller()
    hand_off.opened(reader)
    assert pair.at_a.stats().pins == 1
    reader.stream.cancel()
    eventually(lambda: pair.at_a.stats().pins == 0, KNOWN_SECONDS)
    hand_off.write(0)
    hand_off.write(1)
    hand_off.seal()
    pair.fetched(hand_off.blocks)


def test_a_writer_group_that_is_named_is_followed_by_its_node(pair: Pair) -> None:
    blocks = pair.new(1)
    data, writer = payload(blocks.hashes[0]), pair.a.caller()
    window = writer.reserve(blocks, writer_group="group").handles[0]
    named = {"writer_group": "group", "writer_node": pair.at_a.opened.node_id}

    def open_it() -> bytes:
        reply = pair.at_b.ask("Open", **pair.at_b.about(blocks), **named)
        return bytes(reply.handles[0]) if reply.outcomes[0] == pb.HIT else b""

    handle = eventually(open_it, KNOWN_SECONDS)
    for layer in range(2):
        writer.write(window, data[layer * HALF : (layer + 1) * HALF], LAYER[layer])
    writer.ask("Seal", handles=[window])
    assert pair.at_b.read(handle) == data
    pair.at_b.ask("Close", handles=[handle])


def test_a_block_that_its_group_begins_anew_is_followed_once_by_all_its_readers(
    pair: Pair,
) -> None:
    blocks, writer = pair.new(2), pair.a.caller()
    first, second = blocks.between(0, 1), blocks.between(1, 2)
    handles = writer.reserve(blocks, writer_group="anew").handles
    named = {"writer_group": "anew", "writer_node": pair.at_a.opened.node_id}

    def opened(some: Chain, reader: Caller = pair.at_b) -> list[bytes]:
        def open_them() -> list[bytes]:
            reply = reader.ask("Open", **reader.about(some), **named)
            held = [handle for handle in reply.handles if handle]
            if len(held) == len(some):
                return held
            reader.ask("Close", handles=held) if held else None
            return []

        return list(eventually(open_them, KNOWN_SECONDS))

    held = opened(blocks)
    writer.ask("Abort", handles=handles[:1])

    def given_up() -> bool:
        reply = pair.at_b.ask("Open", **pair.at_b.about(first), **named)
        if reply.handles[0]:
            pair.at_b.ask("Close", handles=reply.handles)
        return reply.outcomes[0] != pb.HIT

    eventually(given_up)
    again = writer.reserve(first, writer_group="anew").handles[0]
    held += opened(first)
    followed = pair.at_b.counters()["followed_blocks"]
    writer.write(handles[1], payload(second.hashes[0]))
    writer.ask("Seal", handles=handles[1:])
    eventually(lambda: pair.at_b.counters()["followed_blocks"] > followed)
    time.sleep(0.2)  # until what followed both of them has ended
    asked = pair.at_a.counters()["open_hit_blocks"]
    held += opened(first)
    assert pair.at_a.counters()["open_hit_blocks"] == asked, "it is on its way here already"
    writer.write(again, payload(first.hashes[0]))
    writer.ask("Seal", handles=[again])
    assert [pair.at_b.read(one) for one in held[-2:]] == [payload(first.hashes[0])] * 2
    pair.at_b.ask("Close", handles=held)


def test_a_node_without_room_for_what_is_followed_says_miss(pair: Pair) -> None:
    larges = [prompt(10**6 + number, 1, LARGE) for number in range(2)]
    fillers = [pair.at_b.reserve(one, LARGE).handles[0] for one in larges]  # both of its slabs
    hand_off = HandOff(pair)
    about = pair.at_b.about(hand_off.blocks)
    reply = pair.at_b.ask("Open", **about, hand_offs=hand_off.hand_offs)
    assert reply.outcomes[0] != pb.HIT
    pair.at_b.ask("Abort", handles=fillers)
    handle = hand_off.opened(pair.at_b)
    hand_off.write(0)
    hand_off.write(1)
    hand_off.seal()
    assert pair.at_b.read(handle) == hand_off.data
    pair.at_b.ask("Close", handles=[handle])


def test_a_node_whose_slabs_are_too_small_for_what_is_followed_holds_nothing_elsewhere() -> None:
    with pool() as nodes:
        slabs = {"a": "8MiB", "b": "1MiB"}
        pair = Pair(nodes, *(nodes.node(k, "tests.unhurried", slab=v) for k, v in slabs.items()))
        blocks, writer = pair.new(1, LARGE), pair.a.caller()  # 4 MiB
        hand_offs = writer.reserve(blocks, LARGE, hand_off=True).hand_offs
        about, opened = pair.at_b.about(blocks, LARGE), pair.at_a.counters()["open_hit_blocks"]
        assert pair.at_b.ask("Open", **about, hand_offs=hand_offs).outcomes[0] != pb.HIT
        assert pair.at_a.counters()["open_hit_blocks"] == opened + 1, "the test sees nothing"
        eventually(lambda: pair.at_a.stats().pins == 0)


def test_a_hand_off_of_a_node_that_is_gone_is_a_miss_and_a_forged_one_is_refused() -> None:
    with pool() as nodes:
        pair = Pair(nodes, nodes.node("a"), nodes.node("b"))
        hand_off = HandOff(pair)
        handle = hand_off.opened(pair.at_b)
        hand_off.write(0)
        reading = Reading(pair.at_b, handle)
        eventually(lambda: len(reading.came) == HALF, KNOWN_SECONDS)
        pair.a.kill()
        assert reading.end() == hand_off.data[:HALF] and reading.error is not None

        def asked() -> int:
            about = pair.at_b.about(hand_off.blocks)
            return int(pair.at_b.ask("Open", **about, hand_offs=hand_off.hand_offs).outcomes[0])

        assert asked() != pb.HIT, "it is in the roster still"
        eventually(lambda: not nodes.entries(f"nodes/{hand_off.writer.opened.node_id}"), 30)
        time.sleep(0.2)
        assert asked() != pb.HIT, "it is gone"
        forged = pair.at_b.reserve(pair.new(1), hand_off=True).hand_offs[0][:-1] + b"?"
        about = pair.at_b.about(hand_off.blocks)
        assert (
            refused(lambda: pair.at_b.ask("Open", **about, hand_offs=[forged])).kind == "NotYours"
        )
        pair.at_b.ask("Close", handles=[handle])
        eventually(lambda: pair.at_b.stats().pins == 0, KNOWN_SECONDS)
        assert "Traceback" not in pair.b.log


def test_a_block_that_stands_twice_in_one_call_is_followed_once(pair: Pair) -> None:
    hand_off, before = HandOff(pair), pair.at_b.counters()["followed_blocks"]
    about = pair.at_b.about(hand_off.blocks) | {"hashes": hand_off.blocks.hashes * 2}

    def opened() -> Any:
        reply = pair.at_b.ask("Open", **about, hand_offs=[*hand_off.hand_offs] * 2)
        return reply if list(reply.outcomes) == [pb.HIT] * 2 else None

    handles = eventually(opened, KNOWN_SECONDS).handles
    hand_off.write(0)
    hand_off.write(1)
    hand_off.seal()
    assert Reading(pair.at_b, handles[0]).end() == hand_off.data
    pair.at_b.ask("Close", handles=handles)
    pair.at_rest()
    assert pair.at_b.counters()["followed_blocks"] == before + 1


def test_a_reader_that_goes_while_blocks_are_opened_leaves_none_open_at_their_writers() -> None:
    async def main() -> None:
        rig, holder = Rig(), Holder([b"handle"])
        peers: Any = holder
        given = (rig.blocks, rig.arena, peers, *rig.following)
        asked = Asked("default", SMALL, [b"h" * 32], [b"k" * 32], (), "group", "holder")
        asking = asyncio.create_task(Follow(*given).local(asked))
        await cancelled_while_it_asks(asking, holder)
        assert not holder.open

    asyncio.run(main())


class Together:
    """Stands for `Peers` of which each is as late as all the others."""

    def __init__(self, nodes: int) -> None:
        self._asked, self.failed = asyncio.Barrier(nodes), list[str]().append

    def by_tag(self, tag: bytes) -> str:
        return tag.hex()

    async def link(self, node_id: str, tenant: str) -> Any:
        await self._asked.wait()
        raise Unavailable(f"node {node_id} is gone")


def test_writers_at_several_nodes_are_asked_at_once() -> None:
    async def main() -> None:
        rig, peers = Rig(), cast(Any, Together(3))
        given = (rig.arena, peers, *rig.following)
        follow, hashes = Follow(rig.blocks, *given), [bytes([i]) * 32 for i in range(3)]
        asked = Asked("default", SMALL, hashes, hashes, [bytes([i]) * 60 for i in range(3)])
        async with asyncio.timeout(5.0):
            assert await follow.local(asked) == [b""] * 3

    asyncio.run(main())


class Brings:
    """Stands for connections over which a block comes whole."""

    def __init__(self, source: HashedLanding) -> None:
        self._source, self.lanes = source, self

    def pull(
        self, layout: SlotLayout, slots: Slots, part: Fragment, into: HashedLanding, *_: Any
    ) -> Any:
        into.runs[:] = self._source.runs
        for there, here in zip(
            into.pieces(0, layout.whole), self._source.pieces(0, layout.whole), strict=True
        ):
            there[:] = here
        return np.ones(1, bool)


def test_strips_are_there_before_their_entries_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, layout, one = Rig(), SMALL.layout, rig_prompt(SMALL, TOKENS)
    [source] = rig.put(rig.session(), SMALL, one)
    [key] = rig.store.keys("other", SMALL, one.hashes)
    told = ([(key, b"", TOKENS)], "other", (), [0])
    [target] = rig.blocks.arriving.begin(SMALL.owner, layout, *told)
    tokens = np.array([TOKENS], np.int32)
    there, here = (
        HashedLanding(layout, rig.arena.bytes, np.array([slot.offset + layout.head_bytes]), tokens)
        for slot in (source, target)
    )
    there.hash(np.arange(1), layout.whole)
    at = target.offset + IDENTITY_OFFSET
    there.runs[0, :IDENTITY_BYTES] = rig.arena.bytes[at : at + IDENTITY_BYTES]
    link: Any = Brings(there)
    slots = slots_of([source.offset], [source.generation], [TOKENS], [b""])
    seen: list[bytes] = []

    def look() -> None:
        assert rig.blocks.heads.none_written([target], layout, layout.whole)
        seen.append(b"".join(here.pieces(0, layout.whole)))

    monkeypatch.setattr("kvstore.node.follow.fence", look)
    run = _Run(link, SMALL, slots, [target], here, [])
    assert run.advance(np.arange(1), 0, layout.layers, Term()).all()
    assert seen == [rig.read(source, SMALL)] == [rig.read(target, SMALL)]
