"""A real conductor knows what three real nodes hold, and every conductor knows the same."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.metadata.records import ConductorRecord
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import kv_pb2
from tests.nodes import CALL_SECONDS, SPEC, eventually, prompt, refused
from tests.pools import ConductorProcess, Nodes, pool

KNOWN_SECONDS = 30.0  # far more than it takes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


@pytest.fixture
def conductor(nodes: Nodes) -> ConductorProcess:
    return nodes.conductor()


def test_match_names_who_has_how_much_and_follows_what_comes_and_goes(
    nodes: Nodes, conductor: ConductorProcess
) -> None:
    assert not conductor.match(prompt(1)).holders, "nobody has ever served"
    first, second, third = (nodes.node(name) for name in ("a", "b", "c"))
    callers = [one.caller() for one in (first, second, third)]
    for caller in callers:
        caller.register()
    blocks = prompt(1, blocks=6)
    callers[0].put(blocks.between(0, 4))
    callers[1].put(blocks)
    expected = {first.address: (4, 4), second.address: (6, 6)}
    eventually(lambda: conductor.holding(blocks) == expected, KNOWN_SECONDS)
    eventually(lambda: not conductor.match(blocks).approximate, KNOWN_SECONDS)  # c has none
    reply = conductor.match(blocks)
    assert reply.blocks == 6 and not reply.approximate
    assert [one.blocks for one in reply.holders] == [6, 4], "the one with the most first"
    assert not conductor.match(prompt(2, blocks=3)).holders

    request = {"namespace": SPEC.digest, "group": 0}
    callers[1].ask("Remove", **request, hashes=blocks.hashes[5:6])
    expected = {first.address: (4, 4), second.address: (5, 5)}
    eventually(lambda: conductor.holding(blocks) == expected, KNOWN_SECONDS)

    found = conductor.holders(nodes.prints(blocks))
    assert [(one.node_id, one.epoch, one.tiers) for one in found.holders] == [
        (callers[1].opened.node_id, callers[1].opened.epoch, bytes([1, 1, 1, 1, 1, 0])),
        (callers[0].opened.node_id, callers[0].opened.epoch, bytes([1, 1, 1, 1, 0, 0])),
    ]
    another = nodes.conductor("another")
    eventually(lambda: another.holding(blocks) == expected, KNOWN_SECONDS)
    assert len(nodes.entries(ConductorRecord.prefix)) == 2


def test_a_drained_node_is_named_no_more_and_one_that_comes_anew_is(
    nodes: Nodes, conductor: ConductorProcess
) -> None:
    node = nodes.node("d")
    caller = node.caller()
    caller.register()
    blocks = prompt(3, blocks=2)
    caller.put(blocks)
    eventually(lambda: conductor.holding(blocks) == {node.address: (2, 2)}, KNOWN_SECONDS)
    node.signal(signal.SIGTERM)
    node.wait()
    eventually(lambda: not conductor.holding(blocks), KNOWN_SECONDS)
    node.start()
    caller = node.caller()
    caller.register()
    assert caller.put(blocks) == [kv_pb2.PutReply.STORED] * 2
    eventually(lambda: conductor.holding(blocks) == {node.address: (2, 2)}, KNOWN_SECONDS)


def test_questions_that_make_no_sense_are_refused_by_name(conductor: ConductorProcess) -> None:
    hashes = prompt(1).hashes
    for fields, why in (
        ({"namespace": b"short", "hashes": hashes}, "namespace is 5 bytes"),
        ({"namespace": SPEC.digest, "hashes": []}, "0 hashes in one call"),
        ({"namespace": SPEC.digest, "hashes": [b"x"]}, r"hashes[0] is 1 bytes"),
        ({"namespace": SPEC.digest, "hashes": hashes, "group": 1 << 31}, "group 2147483648"),
    ):
        request = pb.PoolMatchRequest(**fields)
        said = refused(lambda request=request: conductor.stub.Match(request, timeout=CALL_SECONDS))
        assert said.kind == "Invalid" and why in said.text
    assert refused(lambda: conductor.holders(b"123")).kind == "Invalid"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_conductor_that_is_told_to_end_takes_its_record_with_it(
    nodes: Nodes, number: int
) -> None:
    one = nodes.conductor(f"ends {number}")

    def recorded() -> bool:
        records = map(ConductorRecord.parse, nodes.entries(ConductorRecord.prefix))
        return one.address in {record.address for record in records}

    with open_channel(one.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="moonpool.v1.Conductor")
        assert health.Check(request, timeout=CALL_SECONDS).status == 1
        assert recorded()
        one.signal(number)
        assert one.wait() == 0
        assert not recorded()
        with pytest.raises(grpc.RpcError):
            health.Check(request, timeout=1.0)


def first_start(place: Path, *options: str) -> subprocess.Popen[str]:
    """Of a conductor on a machine that has never compiled one."""
    command = [sys.executable, "-m", "kvstore", "conductor", "--dir", str(place), *options]
    never = os.environ | {"NUMBA_CACHE_DIR": str(place / "compiled")}
    return subprocess.Popen(command, env=never, text=True, stdout=PIPE, stderr=PIPE)


@pytest.mark.parametrize("option", ["--metrics", "--listen"])
def test_a_port_that_is_in_use_is_named_before_anything_is_compiled(
    tmp_path: Path, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = first_start(tmp_path, option, address)
        _, said = ran.communicate(timeout=120)
    assert ran.returncode == 2
    assert said.startswith(f"moonpool: {option} = '{address}': another process does: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("decision.*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_it_compiles_it_says_so_and_a_signal_ends_it_at_once(
    tmp_path: Path, number: int
) -> None:
    with first_start(tmp_path) as starting:
        try:
            assert starting.stderr is not None and starting.stdout is not None
            assert starting.stderr.readline().startswith("compiling")
            starting.send_signal(number)
            assert starting.stderr.read() == "interrupted\n"
            assert starting.stdout.read() == ""
            assert starting.wait(60) == 128 + number
        finally:
            starting.kill()
    with sqlite3.connect(tmp_path / "metadata.db") as kept:
        assert not any("conductor" in line for line in kept.iterdump()), "nobody was told of it"


def test_a_pool_that_nobody_serves_yet_is_told_by_its_name(nodes: Nodes) -> None:
    """As where that is mistyped: else the conductor would answer for nobody, and say nothing."""
    said = f"no node serves yet in the pool of {nodes.metadata}"
    assert said in nodes.conductor("first").log
    nodes.node("a")
    assert said not in nodes.conductor("second").log
