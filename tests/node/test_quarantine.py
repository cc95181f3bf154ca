"""A namespace whose KV was found wrong: nobody uses it, until an operator releases it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from kvstore.cli.main import main
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import LARGE, SPEC, Caller, NodeProcess, prompt, refused


def quarantine(caller: Caller, reason: str = "layer 3 is 1.01 x what it should be") -> None:
    caller.ask("Quarantine", namespace=SPEC.digest, reason=reason)


def test_every_way_to_a_block_of_it_is_a_miss_that_says_so(caller: Caller) -> None:
    blocks = prompt(1, blocks=3)
    caller.put(blocks)
    quarantine(caller)
    wrong = pb.QUARANTINED
    assert caller.match(blocks) == (0, wrong)
    assert list(caller.ask("Exists", **caller.about(blocks)).outcomes) == [wrong] * 3
    assert list(caller.ask("Open", **caller.about(blocks)).outcomes) == [wrong] * 3
    assert list(caller.ask("Pin", **caller.about(blocks)).outcomes) == [wrong] * 3
    assert caller.get(blocks) == ([wrong] * 3, [b""] * 3)


def test_nothing_more_is_taken_of_it(caller: Caller) -> None:
    quarantine(caller)
    assert refused(lambda: caller.reserve(prompt(2))).kind == "Quarantined"
    assert refused(lambda: caller.put(prompt(2))).kind == "Quarantined"


def test_other_namespaces_are_not_touched(caller: Caller) -> None:
    caller.register(LARGE)
    quarantine(caller)
    blocks = prompt(3, spec=LARGE)
    caller.put(blocks, spec=LARGE)
    assert caller.match(blocks, LARGE) == (1, pb.HIT)


def test_it_outlives_the_node(home: Path) -> None:
    for start in range(2):
        node = NodeProcess(home).start()
        try:
            caller = node.caller()
            caller.register()
            if start == 0:
                quarantine(caller, "layer 3 is wrong")
            (found,) = caller.stats().namespaces
            assert found.quarantined == "layer 3 is wrong"
            assert caller.match(prompt(4)) == (0, pb.QUARANTINED)
        finally:
            node.kill() if start == 0 else node.close()


def test_an_unknown_namespace_cannot_be_quarantined(caller: Caller) -> None:
    told = refused(lambda: caller.ask("Quarantine", namespace=bytes(32), reason="?"))
    assert told.kind == "UnknownNamespace"


def test_a_release_drops_its_blocks_and_opens_it(
    caller: Caller, node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = prompt(5, blocks=2)
    caller.put(blocks)
    quarantine(caller)
    assert main(["release", SPEC.digest.hex()[:8], "--node", node.address]) == 0
    assert capsys.readouterr().out == f"released {SPEC.digest.hex()[:12]}; 2 blocks dropped\n"
    assert caller.match(blocks) == (0, pb.QUARANTINED), "the reason why they are gone"
    assert caller.put(blocks) == [pb.PutReply.STORED] * 2
    assert caller.match(blocks) == (2, pb.HIT)


@pytest.mark.parametrize("name", ["", "00"])
def test_a_release_names_what_is_in_quarantine_when_its_argument_does_not(
    caller: Caller, name: str
) -> None:
    quarantine(caller)
    request = admin_pb2.ReleaseRequest(namespace=name)
    with pytest.raises(grpc.RpcError) as caught:
        caller.admin.Release(request, timeout=5)
    assert SPEC.digest.hex()[:12] in str(caught.value.details())
