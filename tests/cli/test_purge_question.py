"""What a purge says it would forget, by what nodes say that they hold."""

from __future__ import annotations

import pytest

from kvstore.cli.purge_question import meant
from kvstore.errors import Invalid
from kvstore.wire.v1 import admin_pb2 as pb

FIRST, SECOND = b"\xab\x01" * 16, b"\xab\x02" * 16


def holds(namespace: bytes, blocks: int, **more: object) -> pb.StatsReply:
    of = pb.NamespaceStats(namespace=namespace, model="m", blocks=blocks, block_bytes=1024)
    return pb.StatsReply(namespaces=[of], **more)


def test_what_all_nodes_hold_of_a_namespace_is_added_up() -> None:
    asked = pb.PurgeRequest(namespace="ab01")
    stats = [holds(FIRST, 3), holds(SECOND, 9), holds(FIRST, 4)]
    said = f"all 7 blocks (about 7.0 KiB) of namespace {FIRST.hex()[:12]} (m)"
    assert meant(asked, stats, 3) == f"{said} at 3 of 3 nodes"
    others = "and what those have that did not answer"
    assert meant(asked, stats, 4) == f"{said} at 3 of 4 nodes, {others}"
    alone = meant(asked, stats[:1])
    assert alone.startswith("all 3 blocks") and "nodes" not in alone


def test_digits_that_name_one_namespace_at_each_node_and_two_in_all_are_no_name() -> None:
    """Each node would forget its own."""
    stats = [holds(FIRST, 3), holds(SECOND, 9)]
    with pytest.raises(Invalid, match="'ab' names 2 namespaces; there are: ab01ab01ab01, ab02"):
        meant(pb.PurgeRequest(namespace="ab"), stats, 2)


def test_a_namespace_that_none_knows_may_be_on_ssd_or_at_a_node_that_says_nothing() -> None:
    asked = pb.PurgeRequest(namespace="cd")
    with pytest.raises(Invalid, match="'cd' names 0 namespaces"):
        meant(asked, [holds(FIRST, 3)])
    with_ssd = holds(FIRST, 3, ssd=[pb.SsdStats()])
    assert meant(asked, [with_ssd]) == "every block of namespace cd, which could be on SSD alone"
    assert "and what those have that did not answer" in meant(asked, [holds(FIRST, 3)], 2)


def test_what_a_tenant_has_at_all_nodes_is_added_up() -> None:
    stats = [
        pb.StatsReply(tenants=[pb.TenantStats(name=name, dram_bytes=1024, ssd_bytes=1024)])
        for name in ("ours", "theirs", "ours")
    ]
    said = meant(pb.PurgeRequest(tenant="ours"), stats, 3)
    assert said == "every block of tenant ours (4.0 KiB) at 3 of 3 nodes"
