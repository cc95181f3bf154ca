"""A node that is drained hands on what nobody else has, serves reads meanwhile, and then ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvstore.cli.main import main
from kvstore.core.replica_choice import choose
from kvstore.errors import KVStoreError, Overloaded, Unavailable
from kvstore.metadata.records import NodeRecord
from kvstore.node.departure import Departure, Progress
from kvstore.node.replicas import Replicas
from kvstore.wire.v1 import admin_pb2, directory_pb2, directory_pb2_grpc
from kvstore.wire.v1 import kv_pb2 as pb
from tests.copies import copied, holding, knowing, put
from tests.node.rig import SMALL, TOKENS, Rig
from tests.node.rig import prompt as prompt_of
from tests.nodes import (
    CALL_SECONDS,
    NodeProcess,
    payload,
    prompt,
    refused,
    running,
    short_directory,
)
from tests.pools import pool


def test_what_nobody_else_has_is_moved_and_the_node_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pool() as nodes:
        leaving, other = (nodes.node(name, "tests.unhurried") for name in "ab")
        callers = knowing([leaving, other])
        chains = [prompt(number, 1 + number % 4) for number in range(20)]
        for blocks in chains[5:]:
            put(callers[0], blocks)
        for blocks in chains[:5]:
            copied(callers[0], blocks, 2)
        held = callers[0].stats().blocks
        alone = sum(len(blocks) for blocks in chains[5:])
        assert main(["drain", "--node", leaving.address]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told[-1] == "draining"
        assert told[0] == (
            f"moved {alone} of {held} blocks; {held - alone} were elsewhere too, 0 are left and "
            "go with this node"
        )
        assert leaving.wait(30.0) == 0
        for blocks in chains:
            assert holding(callers[1:], blocks) == [len(blocks)]
            want = [payload(name) for name in blocks.hashes]
            assert callers[1].get(blocks) == ([pb.HIT] * len(blocks), want)


def test_while_it_moves_it_serves_reads_and_takes_no_puts() -> None:
    with pool() as nodes:
        leaving, other = (nodes.node(name, "tests.unhurried") for name in "ab")
        callers = knowing([leaving, other])
        blocks = prompt(1, 3)
        put(callers[0], blocks)
        request = admin_pb2.MoveOutRequest(seconds=20)
        replies = list(callers[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))
        assert replies[0].moved == 0
        last = replies[-1]
        assert (last.nodes, last.left, last.moved) == (1, 0, 3)
        assert callers[0].get(blocks)[0] == [pb.HIT] * 3
        assert refused(lambda: put(callers[0], prompt(2))).kind == "Draining"
        assert callers[0].stats().state == "draining"
        # It is given none either.
        assert list(put(callers[1], prompt(3), replicas=2).copies) == [1]
        assert list(callers[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))[-1].moved == 0


def test_the_best_goes_first_and_what_is_left_when_the_time_is_over_is_said() -> None:
    with pool() as nodes:
        # A slot is 8 KiB: the other has room for 128 blocks, and what it has is worth more to it.
        leaving = nodes.node("a", "tests.unhurried")
        other = nodes.node("b", "tests.unhurried", dram="1MiB", slab="64KiB")
        callers = knowing([leaving, other])
        old, new = prompt(1, 100), prompt(2, 100)
        put(callers[0], old)
        put(callers[0], new)
        request = admin_pb2.MoveOutRequest(seconds=20)
        last = list(callers[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))[-1]
        assert last.moved + last.left + last.elsewhere == last.blocks
        assert last.left > 0, "there is no room for all"
        assert holding(callers[1:], new) == [100], "the last used is worth most"
        assert holding(callers[1:], old)[0] < 100
        nothing = admin_pb2.MoveOutRequest(seconds=0)
        (only,) = callers[0].admin.MoveOut(nothing, timeout=CALL_SECONDS)
        assert only.left == only.blocks


def test_a_node_that_is_alone_says_so_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as node:
        caller = node.caller()
        caller.register()
        put(caller, prompt(1, 2))
        assert main(["drain", "--node", node.address]) == 0
        told = capsys.readouterr().out
        assert (
            told
            == "there is no other node to take blocks: 2 are lost when this one ends\ndraining\n"
        )
        assert node.wait(30.0) == 0


def test_of_a_node_with_an_ssd_it_says_that_what_that_keeps_is_served_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with short_directory() as directory:
        node = NodeProcess(directory, ssd="64MiB")
        try:
            caller = node.start().caller()
            caller.register()
            put(caller, blocks := prompt(1, 2), durable=True)
            assert main(["drain", "--node", node.address]) == 0
            told = capsys.readouterr().out.splitlines()[0]
            assert told == (
                "there is no other node to take blocks: 2 are lost when this one ends, but for "
                "what its SSD keeps, which is served again when it starts"
            )
            assert node.wait(30.0) == 0
            again = node.start().caller()
            again.register()
            assert again.match(blocks) == (2, pb.HIT)
        finally:
            node.close()


def test_a_drain_that_is_told_to_moves_nothing() -> None:
    with pool() as nodes:
        leaving, other = (nodes.node(name, "tests.unhurried") for name in "ab")
        callers = knowing([leaving, other])
        blocks = prompt(1, 2)
        put(callers[0], blocks)
        assert main(["drain", "--no-move", "--node", leaving.address]) == 0
        assert leaving.wait(30.0) == 0
        assert holding(callers[1:], blocks) == [0]


def test_what_an_earlier_run_left_on_ssd_is_moved_though_nobody_asked_for_it() -> None:
    with pool() as nodes:
        leaving = nodes.node("a", "tests.unhurried", ssd="64MiB")
        other = nodes.node("b", "tests.unhurried")
        callers = knowing([leaving, other])
        blocks = prompt(1, 4)
        put(callers[0], blocks, durable=True)
        leaving.kill()
        again = knowing([leaving.start(), other])
        request = admin_pb2.MoveOutRequest(seconds=20)
        last = list(again[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))[-1]
        assert last.left == 0 and last.moved >= 4
        assert holding(again[1:], blocks) == [4]


def test_a_time_that_is_too_long_is_refused() -> None:
    assert main(["drain", "--node", "127.0.0.1:1", "--seconds", "100000"]) == 2


class Late:
    """Stands for all that a node knows of others, and its clock: one is there, that lists nothing,
    fails so often when it is offered blocks, and is then left alone until some time has passed."""

    node_id, directory = "a", directory_pb2_grpc.DirectoryServicer
    other = NodeRecord("b", 1, "127.0.0.1:7410", {"dram": 1 << 30}, (), {}, "serving")

    def __init__(self, times: int, error: KVStoreError, takes: bool = True) -> None:
        self._times, self._error, self._takes = times, error, takes
        self.rests, self.asked, self.time = False, 0, 0.0
        self.turns = 0  # that others had meanwhile

    def known(self) -> list[NodeRecord]:
        return [] if self.rests else [self.other]

    def resting(self) -> list[NodeRecord]:
        return [self.other] if self.rests else []

    def failed(self, node_id: str) -> None:
        self.rests = True

    async def link(self, node_id: str, tenant: str) -> Late:
        return self

    async def call(self, method: Any, request: Any, seconds: float) -> Any:
        self.asked += 1
        if self.asked <= self._times:
            raise self._error
        return directory_pb2.TakeReply(has=bytes([self._takes]) * len(request.stored_keys))

    async def holders(self, keys: list[bytes]) -> dict[str, Any]:
        return {}

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time, self.turns = self.time + seconds, self.turns + 1
        self.rests = self.rests and not seconds


BLOCKS, SECONDS = 5, 3.0
APART = [1_000 * i for i in range(BLOCKS)]  # as many prompts of a block each


def leaving(others: Any, starts: Sequence[int] = (0,), tokens: int = BLOCKS * TOKENS) -> Departure:
    """Of a node whose others are these, and that has a prompt of each of these beginnings."""
    rig = Rig(slabs=8)
    session = rig.session()
    for start in starts:
        rig.put(session, SMALL, prompt_of(SMALL, tokens, start))
    replicas = Replicas(rig.store, others, others, {}, rig.counters)
    return Departure(rig.store, replicas, others, others, rig.counters)


def moved_out(departure: Departure) -> Progress:
    """How far it came."""

    async def run() -> Progress:
        return [one async for one in departure.move_out(SECONDS)][-1]

    return asyncio.run(run())


BUSY = [Unavailable("it did not answer"), Overloaded("it takes others", 500)]


@pytest.mark.parametrize("error", BUSY)
def test_a_node_that_is_busy_for_a_moment_is_asked_again_and_has_all(error: KVStoreError) -> None:
    others = Late(1, error)
    so_far = moved_out(leaving(others))
    assert so_far == Progress(BLOCKS, elsewhere=0, moved=BLOCKS, left=0, nodes=1)
    assert others.asked == 2


def test_one_that_is_left_alone_when_it_begins_is_waited_for() -> None:
    others = Late(0, BUSY[0])
    others.rests = True
    so_far = moved_out(leaving(others))
    assert so_far == Progress(BLOCKS, elsewhere=0, moved=BLOCKS, left=0, nodes=1)


@pytest.mark.parametrize("error", BUSY)
def test_one_that_stays_busy_is_asked_until_the_time_is_over(error: KVStoreError) -> None:
    others = Late(1_000, error)
    assert moved_out(leaving(others)).left == BLOCKS
    assert others.time == SECONDS and 2 < others.asked < 20


def test_one_that_has_no_room_is_not_asked_again() -> None:
    others = Late(0, BUSY[0], takes=False)
    assert moved_out(leaving(others)).left == BLOCKS
    assert others.asked == 1 and others.time == 0.0


def test_others_have_their_turn_between_any_two_prompts_that_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others, chosen_at = Late(0, BUSY[0]), list[int]()

    def noted(*given: Any) -> Any:
        chosen_at.append(others.turns)
        return choose(*given)

    monkeypatch.setattr("kvstore.node.departure.choose", noted)
    assert moved_out(leaving(others, APART, TOKENS)).moved == BLOCKS
    assert len(chosen_at) == len(set(chosen_at)) == BLOCKS


def test_others_have_their_turn_while_blocks_are_put_in_the_order_of_their_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.node.departure._LOOKED_AT", 1)
    others = Late(0, BUSY[0])
    departure = leaving(others, APART, TOKENS)
    line, index = asyncio.run(departure._worthiest()), departure._index
    worth = [index.worth(slot) for key in line if (slot := index.peek(key)) is not None]
    assert worth == sorted(worth, reverse=True) and len(worth) == BLOCKS
    assert others.turns >= 2 * BLOCKS, "as they are found, and as they are put in order"
