"""Copies of blocks at other nodes, asked for with the put or by an operator: real nodes on one
metadata file.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from kvstore.block import Chain
from kvstore.cli.main import main
from kvstore.client import Client
from kvstore.limits import OFFERS_MAX, TAKE_BLOCKS_MAX
from kvstore.metadata.records import NodeRecord
from kvstore.node.replicas import Replicas
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import directory_pb2, directory_pb2_grpc
from kvstore.wire.v1 import kv_pb2 as pb
from tests.copies import between, copied, holding, knowing, put
from tests.faults.system_calls import spoilt
from tests.nodes import CALL_SECONDS, SPEC, Caller, Refusal, eventually, payload, prompt, refused
from tests.pools import pool

LEFT = 0.05  # seconds that an offer has


@pytest.fixture(scope="module")
def trio() -> Iterator[list[Caller]]:
    with pool() as nodes:
        yield knowing([nodes.node(name, "tests.unhurried") for name in "abc"])


def test_a_put_that_asks_for_two_copies_has_them_when_it_returns(trio: list[Caller]) -> None:
    blocks = prompt(1, 3)
    copied(trio[0], blocks, 2)
    assert sorted(holding(trio, blocks))[1:] == [3, 3]
    assert holding(trio, blocks)[0] == 3


def test_a_put_that_asks_for_none_makes_none(trio: list[Caller]) -> None:
    blocks = prompt(2, 3)
    assert list(put(trio[0], blocks).copies) == []
    assert holding(trio, blocks) == [3, 0, 0]


def test_more_copies_than_there_are_nodes_are_as_many_as_there_are_nodes(
    trio: list[Caller],
) -> None:
    blocks = prompt(3, 2)
    eventually(lambda: list(put(trio[1], blocks, replicas=5).copies) == [3, 3], 60.0)
    assert holding(trio, blocks) == [2, 2, 2]


def test_what_is_put_behind_a_chain_goes_where_the_chain_went(trio: list[Caller]) -> None:
    together = 0
    for number in range(10, 16):
        blocks = prompt(number, 6)
        for first in (0, 2, 4):
            copied(trio[0], blocks, 2, first, first + 2)
        together += sorted(holding(trio, blocks)) == [0, 6, 6]
    assert together >= 5, "but for a node that was late, all of a chain is at the same two nodes"


def test_what_stands_before_a_block_goes_along(trio: list[Caller]) -> None:
    blocks = prompt(20, 6)
    put(trio[0], blocks, 0, 4)
    copied(trio[0], blocks, 2, 4, 6)
    assert sorted(holding(trio, blocks))[1:] == [6, 6]


def test_what_was_there_already_is_copied_too(trio: list[Caller]) -> None:
    blocks = prompt(21, 2)
    put(trio[0], blocks)
    assert copied(trio[0], blocks, 3) == [pb.PutReply.EXISTED] * 2
    assert holding(trio, blocks) == [2, 2, 2]


def test_a_seal_asks_for_copies_as_a_put_does(trio: list[Caller]) -> None:
    numbers = iter(range(10_000, 20_000))
    with Client.at(trio[0].address, SPEC, deadline_seconds=CALL_SECONDS) as client:
        tensors = [np.ones((12, 2, 2, 8), np.float16) for _ in SPEC.groups[0].layers]
        memory = client.memory(tensors, "tkhd")

        def sealed() -> Chain | None:
            blocks = prompt(next(numbers), 3)
            with client.writer(blocks) as writer:
                writer.put(memory)
                assert writer.seal((0, 2), replicas=2) == ["SEALED"] * 2
                return blocks if writer.copies.tolist() == [2, 2, 0] else None

        def put_whole() -> bool:
            blocks = prompt(next(numbers), 3)
            assert client.put(blocks, memory, replicas=2) == 3
            return sorted(holding(trio, blocks)) == [0, 3, 3]

        assert sorted(holding(trio, eventually(sealed, 60.0))) == [0, 2, 2]
        eventually(put_whole, 60.0)


def test_a_copy_has_the_bytes_and_the_root_of_what_was_put(trio: list[Caller]) -> None:
    blocks = prompt(23, 2)
    copied(trio[0], blocks, 3)
    replies = [one.ask("Open", **one.about(blocks), lineage=True) for one in trio]
    assert len({tuple(one.roots) for one in replies}) == 1
    for caller, reply in zip(trio, replies, strict=True):
        read = [caller.read(handle) for handle in reply.handles]
        assert read == [payload(name) for name in blocks.hashes]
        caller.ask("Close", handles=reply.handles)


def test_nobody_asks_for_more_copies_than_there_may_be(trio: list[Caller]) -> None:
    told = refused(lambda: put(trio[0], prompt(24), replicas=9))
    assert (told.kind, told.text) == ("Invalid", "replicas 9: at most 8")


def test_a_remove_reaches_the_copies_and_counts_each_block_once(trio: list[Caller]) -> None:
    blocks = prompt(25, 3)
    copied(trio[0], blocks, 3)
    more = prompt(26, 2)
    put(trio[1], more)
    assert trio[0].ask("Remove", **trio[0].about(blocks)).removed == 3
    assert holding(trio, blocks) == [0, 0, 0]
    assert trio[0].ask("Remove", **trio[0].about(more)).removed == 2, "which are elsewhere alone"
    assert holding(trio, more) == [0, 0, 0]
    assert trio[0].match(more)[0] == 0


def test_a_remove_reaches_the_copies_though_the_disk_does_not_take_it() -> None:
    with pool() as nodes:
        a = nodes.node("a", "tests.unhurried", ssd="64MiB")
        b = nodes.node("b", "tests.unhurried")
        callers, blocks = knowing([a, b]), prompt(1, 2)
        put(callers[0], blocks, durable=True)
        copied(callers[0], blocks, 2)
        with spoilt(a, "fdatasync", "error=EIO"):
            told = refused(lambda: callers[0].ask("Remove", **callers[0].about(blocks)))
            assert told.kind == "Unavailable" and "a restart may bring it back" in told.text
            assert holding(callers, blocks) == [0, 0]


def test_what_a_disk_elsewhere_does_not_take_is_removed_there_all_the_same() -> None:
    with pool() as nodes:
        a = nodes.node("a", "tests.unhurried")
        b = nodes.node("b", "tests.unhurried", ssd="64MiB")
        callers, blocks = knowing([a, b]), prompt(1, 2)
        put(callers[1], blocks, durable=True)
        eventually(lambda: callers[0].match(blocks)[0] == 2, 60.0)
        with spoilt(b, "fdatasync", "error=EIO"):
            assert callers[0].ask("Remove", **callers[0].about(blocks)).removed == 2
            assert holding(callers, blocks) == [0, 0]
            assert "a restart may bring it back" in b.log
        assert "may keep blocks" not in a.log


def test_an_operator_has_a_prompt_copied(
    trio: list[Caller], capsys: pytest.CaptureFixture[str]
) -> None:
    blocks, other = prompt(27, 3), prompt(28, 2)
    put(trio[0], blocks)
    put(trio[0], other)
    tokens = ",".join(map(str, [27, *range(11)]))
    name = ["replicate", "--node", trio[0].address, "--namespace", SPEC.digest.hex()[:12]]

    def told(*arguments: str) -> tuple[int, str]:
        code = main([*name, *arguments])
        return code, capsys.readouterr().out

    whole = (0, "3 of 3 blocks are at 2 nodes\n")
    eventually(lambda: told("--tokens", tokens, "--copies", "2") == whole, 60.0)
    assert sorted(holding(trio, blocks))[1:] == [3, 3]
    assert holding(trio, other) == [2, 0, 0]
    hashes = [part for one in other.hashes for part in ("--hash", one.hex())]

    def all_three() -> bool:
        code, out = told(*hashes, "--copies", "4", "--json")
        assert code == 1, "there are three nodes"
        counts = {"blocks": 2, "blocks_done": 2, "whole": 0, "least": 3}
        return bool(json.loads(out) == {"asked": 2} | counts)

    eventually(all_three, 60.0)
    assert holding(trio, other) == [2, 2, 2]


def test_an_operator_has_all_of_a_namespace_copied(
    trio: list[Caller], capsys: pytest.CaptureFixture[str]
) -> None:
    put(trio[0], prompt(29, 2))
    name = ["replicate", "--node", trio[0].address, "--namespace", SPEC.digest.hex()[:12]]
    eventually(lambda: main([*name, "--copies", "3"]) == 0, 60.0)
    blocks = trio[0].stats().blocks
    assert capsys.readouterr().out.endswith(f"{blocks} of {blocks} blocks are at 3 nodes\n")
    assert holding(trio, prompt(29, 2)) == [2, 2, 2]
    assert min(one.stats().blocks for one in trio) >= blocks


def test_copies_go_to_another_rack_where_there_is_one() -> None:
    with pool() as nodes:
        racks = {"a": "r1", "b": "r1", "c": "r2"}
        parts = [nodes.node(k, options=["--label", f"rack={v}"]) for k, v in racks.items()]
        callers, another = knowing(parts), 0
        for number in range(8):
            blocks = prompt(number, 1)
            copied(callers[0], blocks, 2)
            another += holding(callers, blocks) == [1, 0, 1]
        assert another >= 7, "but for a node that was late"


def test_a_durable_copy_outlives_both_nodes_and_goes_where_there_is_ssd() -> None:
    with pool() as nodes:
        a, b, c = nodes.node("a", ssd="64MiB"), nodes.node("b"), nodes.node("c", ssd="64MiB")
        callers = knowing([a, b, c])
        chains = [prompt(number, 2) for number in range(4)]
        for blocks in chains:
            copied(callers[0], blocks, 2, durable=True)
            assert holding(callers, blocks) == [2, 0, 2]
        more = {"replicas": 3, "durable": True}
        eventually(lambda: list(put(callers[0], chains[0], **more).copies) == [2, 2], 60.0)
        for node in (a, c):
            node.kill()
        left = c.start().caller()
        left.register()
        assert [holding([left], blocks) for blocks in chains] == [[2]] * 4


def test_a_node_that_stands_still_costs_a_copy_and_not_the_put() -> None:
    with pool() as nodes:
        started = [nodes.node(name) for name in "ab"]
        callers = knowing(started)
        started[1].signal(signal.SIGSTOP)
        blocks = prompt(1, 2)
        reply = put(callers[0], blocks, replicas=2)
        assert list(reply.stored) == [pb.PutReply.STORED] * 2
        assert list(reply.copies) == [1, 1]
        assert holding(callers[:1], blocks) == [2]
        started[1].signal(signal.SIGCONT)

        def copied() -> bool:
            return list(put(callers[0], blocks, replicas=2).copies) == [2, 2]

        eventually(copied, 30.0)


def test_a_killed_nodes_blocks_are_read_from_their_copies() -> None:
    with pool() as nodes:
        started = [nodes.node(name) for name in "abc"]
        callers = knowing(started)
        chains = [prompt(number, 2) for number in range(4)]
        for blocks in chains:
            copied(callers[0], blocks, 2)
        started[0].kill()
        for blocks in chains:
            for caller in callers[1:]:
                read = lambda one=caller, some=blocks: one.get(some)  # noqa: E731
                want = ([pb.HIT] * 2, [payload(name) for name in blocks.hashes])
                eventually(lambda read=read, want=want: read() == want, 20.0)


def test_a_node_takes_one_batch_of_a_source_at_a_time() -> None:
    with pool() as nodes:
        started = [nodes.node(name) for name in "ab"]
        callers = knowing(started)
        started[0].signal(signal.SIGSTOP)
        with open_channel(started[1].address) as channel:
            directory = directory_pb2_grpc.DirectoryStub(channel)
            request = directory_pb2.TakeRequest(
                namespace=SPEC.digest,
                stored_keys=[bytes(32)],
                source=callers[0].opened.node_id,
            )
            calls = [directory.Take.future(request, timeout=CALL_SECONDS) for _ in range(3)]
            told = [call.exception() for call in calls]
            assert [call.result().has for call in calls if not call.exception()] == [b"\0"]
            refusals = [Refusal(error) for error in told if error is not None]
            assert [one.text for one in refusals] == [
                "this node is taking what was offered before"
            ] * 2
        started[0].signal(signal.SIGCONT)


def test_nodes_alone_open_blocks_by_stored_key(trio: list[Caller]) -> None:
    """Over TLS it is refused: see tests/auth. What cannot be meant is refused everywhere."""
    blocks = prompt(30, 2)
    put(trio[0], blocks)
    about = {"namespace": SPEC.digest, "group": 0}
    told = refused(lambda: trio[0].ask("Open", **about, stored_keys=[b"short"]))
    assert told.text == "stored_keys[0] is 5 bytes; a stored key has 32"
    keys = between(trio[0], blocks)
    both = {**trio[0].about(blocks), "stored_keys": keys}
    assert refused(lambda: trio[0].ask("Open", **both)).kind == "Invalid"
    reply = trio[0].ask("Open", **about, stored_keys=[*keys, bytes(32)], lineage=True)
    assert list(reply.outcomes) == [pb.HIT] * len(keys) + [pb.ABSENT]


class Passing:
    """Stands for `Peers` where one other node at a time is there, and takes all it is offered."""

    node_id, directory = "a", directory_pb2_grpc.DirectoryServicer

    def __init__(self) -> None:
        self.other, self.asked = "", list[bytes]()

    async def answers(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def known(self) -> list[NodeRecord]:
        tiers = {"dram": 1 << 30}
        return [NodeRecord(self.other, 1, "127.0.0.1:7410", tiers, (), {}, "serving")]

    async def link(self, node_id: str, tenant: str) -> Passing:
        return self

    async def call(self, method: Any, request: Any, seconds: float) -> Any:
        self.asked.append(request.stored_keys[0])
        await self.answers(seconds)
        has = b"\x01" * len(request.stored_keys)
        return directory_pb2.TakeReply(has=has, free_bytes=7)


def test_of_nodes_that_are_gone_nothing_is_remembered() -> None:
    async def run() -> None:
        peers: Any = Passing()
        nobody: Any = None
        replicas = Replicas(nobody, peers, nobody, {}, nobody)
        for number in range(20):
            peers.other = f"node {number}"
            (one,) = replicas.candidates()
            assert one.free_bytes == 1 << 30
            assert await replicas.offer(one.node_id, ("t", (b"n", 0)), [b"k"]) == [True]
            assert [one.free_bytes for one in replicas.candidates()] == [7]
        assert len(replicas._free) == 1 and not len(replicas._turns)

    asyncio.run(run())


def keys_of(name: bytes, count: int) -> list[bytes]:
    return [name + i.to_bytes(4, "big") for i in range(count)]


def test_of_what_two_offer_one_node_each_has_a_batch_in_turn() -> None:
    async def run() -> None:
        peers, nobody = cast(Any, Passing()), cast(Any, None)
        replicas = Replicas(nobody, peers, nobody, {}, nobody)
        much, little = keys_of(b"much", 3 * TAKE_BLOCKS_MAX), keys_of(b"little", 1)
        whose = ("t", (b"n", 0))
        offers = [replicas.offer("b", whose, keys) for keys in (much, little)]
        assert await asyncio.gather(*offers) == [[True] * len(much), [True]]
        assert [key[:4] for key in peers.asked] == [b"much", b"litt", b"much", b"much"]

    asyncio.run(run())


def test_when_the_time_for_an_offer_is_over_no_more_of_it_is_made() -> None:
    async def run() -> None:
        class Late(Passing):
            async def answers(self, seconds: float) -> None:
                await asyncio.sleep(2 * LEFT)

        peers, nobody = cast(Any, Late()), cast(Any, None)
        replicas = Replicas(nobody, peers, nobody, {}, nobody)
        keys, whose = keys_of(b"", TAKE_BLOCKS_MAX + 1), ("t", (b"n", 0))
        has = await replicas.offer("b", whose, keys, seconds=LEFT)
        assert has == [True] * TAKE_BLOCKS_MAX + [False]
        assert await replicas.offer("b", whose, keys, seconds=0.0) == [False] * len(keys)

    asyncio.run(run())


def test_a_tenants_copies_that_are_on_their_way_leave_room_for_anothers() -> None:
    async def run() -> None:
        nobody = cast(Any, None)
        replicas, begun = Replicas(nobody, nobody, nobody, {}, nobody), list[str]()

        async def copy(copies: int, durable: bool, have: dict[bytes, int]) -> None:
            begun.extend(key.decode() for key in have)
            await asyncio.Event().wait()

        replicas._copy = copy  # type: ignore[method-assign]
        for tenant in ["greedy"] * OFFERS_MAX + ["other"]:
            assert await replicas.copied(tenant, [tenant.encode()], 2, False, 0.0)
        assert begun == ["greedy"] * (OFFERS_MAX * 3 // 4) + ["other"]
        await replicas.close()

    asyncio.run(run())
