"""Purge as an operator meets it: of a real node, that is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from kvstore.block import Chain
from kvstore.cli.main import main
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.ssd_rig import index_of, put_back
from tests.node.test_ssd import check_bytes, put_durable
from tests.nodes import LARGE as LARGE_SPEC
from tests.nodes import SPEC, Caller, NodeProcess, payload, prompt, put_parts, refused, running


def durable(blocks: Chain) -> Iterator[pb.PutRequest]:
    return put_parts(blocks, [payload(one) for one in blocks.hashes], durable=True)


def purged(node: NodeProcess, **whose: str) -> int:
    caller = Caller(node.address)
    try:
        request = admin_pb2.PurgeRequest(**whose)
        (reply,) = caller.admin.Purge(request, timeout=20)
        return int(reply.dropped_blocks)
    finally:
        caller.close()


@pytest.fixture
def both() -> Iterator[tuple[NodeProcess, Caller]]:
    """A node with durable blocks of two namespaces: two of 4 MiB, three of 512 bytes."""
    with running(dram="16MiB", slab="8MiB", ssd="64MiB") as node:
        caller = node.caller()
        caller.register(LARGE_SPEC)
        caller.register(SPEC)
        put_durable(caller, prompt(1, 2, LARGE_SPEC))
        caller.kv.Put(durable(prompt(2, 3)))
        yield node, caller


def test_a_node_that_runs_without_its_ssd_purges_what_is_on_it() -> None:
    with running(ssd="64MiB") as node:
        caller = node.caller()
        caller.register()
        blocks = prompt(1, 2)
        assert list(caller.kv.Put(durable(blocks)).stored)
        node.kill()
        without = NodeProcess(node.directory).start()
        try:
            purged(without, namespace=SPEC.digest.hex())
        finally:
            without.close()
        node.start()
        assert node.caller().match(blocks) == (0, pb.ABSENT)


def test_of_two_namespaces_the_purged_one_is_gone_after_kill_9(
    both: tuple[NodeProcess, Caller], capsys: pytest.CaptureFixture[str]
) -> None:
    node, caller = both
    name = SPEC.digest.hex()[:8]
    assert main(["purge", "--namespace", name, "--yes", "--node", node.address]) == 0
    assert "3 blocks dropped" in capsys.readouterr().out
    assert caller.match(prompt(2, 3)) == (0, pb.REMOVED)
    node.kill()
    node.start()
    caller = node.caller()
    assert caller.match(prompt(2, 3)) == (0, pb.ABSENT)
    check_bytes(caller, prompt(1, 2, LARGE_SPEC))
    caller.kv.Put(durable(prompt(2, 3)))
    node.kill()
    node.start()
    assert node.caller().match(prompt(2, 3)) == (3, pb.HIT)


def test_records_that_come_back_are_passed_over(both: tuple[NodeProcess, Caller]) -> None:
    node, _ = both
    node.kill()
    records = index_of(node.directory / "ssd")
    assert len(records) == 5
    node.start()
    assert purged(node, namespace=SPEC.digest.hex()) == 3
    node.kill()
    assert len(index_of(node.directory / "ssd")) == 2
    put_back(node.directory / "ssd", records)
    node.start()
    caller = node.caller()
    assert caller.match(prompt(2, 3)) == (0, pb.ABSENT)
    check_bytes(caller, prompt(1, 2, LARGE_SPEC))


def test_what_was_released_from_quarantine_is_not_served_after_a_restart(
    both: tuple[NodeProcess, Caller],
) -> None:
    node, caller = both
    node.kill()
    records = index_of(node.directory / "ssd")
    node.start()
    caller = node.caller()
    caller.ask("Quarantine", namespace=SPEC.digest, reason="layer 3 is wrong")
    request = admin_pb2.ReleaseRequest(namespace=SPEC.digest.hex())
    assert caller.admin.Release(request, timeout=10).dropped_blocks == 3
    node.kill()
    put_back(node.directory / "ssd", records)
    node.start()
    assert node.caller().match(prompt(2, 3)) == (0, pb.ABSENT)


def test_a_tenants_purge_is_of_every_namespace(both: tuple[NodeProcess, Caller]) -> None:
    node, caller = both
    assert main(["purge", "--tenant", "default", "--yes", "--node", node.address]) == 0
    assert caller.match(prompt(2, 3)) == (0, pb.REMOVED)
    assert caller.match(prompt(1, 2, LARGE_SPEC), LARGE_SPEC) == (0, pb.REMOVED)


def test_who_does_not_say_yes_purges_nothing(
    caller: Caller, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.put(prompt(1))
    arguments = ["purge", "--namespace", SPEC.digest.hex()[:12], "--node", node.address]
    for answer, code, outcome in (("\n", 1, pb.HIT), ("y\n", 0, pb.REMOVED)):
        monkeypatch.setattr("sys.stdin.readline", lambda answer=answer: answer, raising=False)
        assert main(arguments) == code
        assert caller.match(prompt(1))[1] == outcome


@pytest.mark.parametrize("whose", [{"namespace": ""}, {"namespace": "00"}, {"tenant": "nobody"}])
def test_what_is_not_there_is_refused_with_what_is(caller: Caller, whose: dict[str, str]) -> None:
    def call() -> None:
        list(caller.admin.Purge(admin_pb2.PurgeRequest(**whose), timeout=5))

    refusal = refused(call)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (SPEC.digest.hex()[:12] if "namespace" in whose else "default") in refusal.text
