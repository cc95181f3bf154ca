"""A node that is drained hands on what nobody else has, serves reads meanwhile, and then ends."""

from __future__ import annotations

import pytest

from kvstore.cli.main import main
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.copies import copied, holding, knowing, put
from tests.nodes import CALL_SECONDS, payload, prompt, refused, running
from tests.pools import pool


def test_what_nobody_else_has_is_moved_and_the_node_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pool() as nodes:
        leaving, other = nodes.node("a"), nodes.node("b")
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
        leaving, other = nodes.node("a"), nodes.node("b")
        callers = knowing([leaving, other])
        blocks = prompt(1, 3)
        put(callers[0], blocks)
        request = admin_pb2.MoveOutRequest(seconds=20)
        replies = list(callers[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))
        assert replies[0].moved == 0 and replies[0].nodes == 1
        assert replies[-1].left == 0 and replies[-1].moved == 3
        assert callers[0].get(blocks)[0] == [pb.HIT] * 3
        assert refused(lambda: put(callers[0], prompt(2))).kind == "Draining"
        assert callers[0].stats().state == "draining"
        # It is given none either.
        assert list(put(callers[1], prompt(3), replicas=2).copies) == [1]
        assert list(callers[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))[-1].moved == 0


def test_the_best_goes_first_and_what_is_left_when_the_time_is_over_is_said() -> None:
    with pool() as nodes:
        # A slot is 8 KiB: the other has room for 128 blocks, and what it has is worth more to it.
        leaving = nodes.node("a")
        other = nodes.node("b", dram="1MiB", slab="64KiB")
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
        assert told == "no other node takes blocks: 2 go with this one\ndraining\n"
        assert node.wait(30.0) == 0


def test_a_drain_that_is_told_to_moves_nothing() -> None:
    with pool() as nodes:
        leaving, other = nodes.node("a"), nodes.node("b")
        callers = knowing([leaving, other])
        blocks = prompt(1, 2)
        put(callers[0], blocks)
        assert main(["drain", "--no-move", "--node", leaving.address]) == 0
        assert leaving.wait(30.0) == 0
        assert holding(callers[1:], blocks) == [0]


def test_what_is_on_ssd_from_an_earlier_run_is_moved_too() -> None:
    with pool() as nodes:
        leaving, other = nodes.node("a", ssd="64MiB"), nodes.node("b")
        callers = knowing([leaving, other])
        blocks = prompt(1, 4)
        put(callers[0], blocks, durable=True)
        leaving.kill()
        again = knowing([leaving.start(), other])
        assert again[0].match(blocks) == (4, pb.HIT)
        request = admin_pb2.MoveOutRequest(seconds=20)
        last = list(again[0].admin.MoveOut(request, timeout=CALL_SECONDS + 20))[-1]
        assert last.left == 0 and last.moved >= 4
        assert holding(again[1:], blocks) == [4]


def test_a_time_that_is_too_long_is_refused() -> None:
    assert main(["drain", "--node", "127.0.0.1:1", "--seconds", "100000"]) == 2
