"""`moonpool replicate` on the command line: what is not there is not copied, and it says so; and
`moonpool drain` of a node that is late."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from kvstore.cli import copies
from kvstore.cli.main import main
from kvstore.wire.v1 import admin_pb2 as pb
from kvstore.wire.v1 import admin_pb2_grpc
from tests.nodes import SPEC, Caller, NodeProcess, caller, node, prompt

__all__ = ["caller", "node"]

Printed = pytest.CaptureFixture[str]
STORED = [1, *range(11)]  # the tokens of three blocks


@pytest.fixture
def asking(node: NodeProcess, caller: Caller) -> list[str]:
    caller.put(prompt(1, 3))
    whose = ["--namespace", SPEC.digest.hex()[:12], "--copies", "1"]
    return ["replicate", "--node", node.address, *whose]


def test_of_a_prompt_that_is_partly_there_the_missing_blocks_are_told(
    asking: list[str], capsys: Printed
) -> None:
    for tokens, missing, asked in (([*STORED, *range(5)], 1, 4), ([9] * 8, 2, 2)):
        named = ["--tokens", ",".join(map(str, tokens))]
        assert main([*asking, *named]) == 1
        assert f"{missing} of the {asked} blocks are not at this node" in capsys.readouterr().out
        assert main([*asking, *named, "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["asked"], said["blocks"]) == (asked, asked - missing)


def test_a_short_block_at_its_end_is_not_missed(asking: list[str], capsys: Printed) -> None:
    for tokens in (STORED, [*STORED, 7]):
        assert main([*asking, "--tokens", ",".join(map(str, tokens))]) == 0
        assert capsys.readouterr().out == "3 of 3 blocks are at 1 nodes\n"


def test_blocks_that_are_named_by_their_hashes_are_told_likewise(
    asking: list[str], capsys: Printed
) -> None:
    there = ["--hash", prompt(1, 3).hashes[0].hex()]
    assert main([*asking, *there, *there]) == 0
    assert main([*asking, *there, "--hash", "ab" * 32]) == 1
    assert "1 of the 2 blocks are not at this node" in capsys.readouterr().out


def test_all_that_a_node_has_is_there(asking: list[str], capsys: Printed) -> None:
    assert main([*asking, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["asked"] == 3


class Late(admin_pb2_grpc.AdminServicer):
    """A node that begins to move out, and is not done with it; one that has time for it is cut
    off."""

    def __init__(self) -> None:
        self.drained = False
        self._over = threading.Event()

    def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsReply:
        return pb.StatsReply()

    def MoveOut(self, request: pb.MoveOutRequest, context: Any) -> Iterator[pb.MoveOutReply]:
        yield pb.MoveOutReply(blocks=9, moved=4, elsewhere=2, left=3, nodes=1)
        if request.seconds:
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        context.add_callback(self._over.set)
        self._over.wait(30)

    def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainReply:
        self.drained = True
        return pb.DrainReply()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Late, list[str]]]:
    """One, and the command that drains it, in so many seconds."""
    monkeypatch.setattr(copies, "_GRACE_SECONDS", 5.0)
    node, server = Late(), grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServicer_to_server(node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield node, ["drain", "--node", f"127.0.0.1:{port}", "--seconds"]
    server.stop(None).wait(10)


def test_a_node_that_is_late_with_moving_out_is_drained_all_the_same(
    late: tuple[Late, list[str]], capsys: Printed
) -> None:
    node, drain = late
    assert main([*drain, "0"]) == 0
    assert node.drained, "it takes nothing new, and goes on for ever"
    assert "moved 4 of 9 blocks; 2 were elsewhere too, 3 are left" in capsys.readouterr().out


def test_one_that_is_cut_off_in_its_time_may_be_drained_again_and_that_is_said(
    late: tuple[Late, list[str]], capsys: Printed
) -> None:
    node, drain = late
    assert main([*drain, "60"]) == 1
    assert not node.drained, "it has all that it was to hand over"
    said = capsys.readouterr().err
    assert "end it by `drain --no-move`, or drain it again" in said and "cut off" in said
