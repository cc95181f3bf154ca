"""What a node counts of what was asked of it is what came of it: wherever in the pool a prompt was
found, and by whichever way its blocks went."""

from __future__ import annotations

import pytest

from kvstore.client import Client
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.kv import Cache
from tests.copies import knowing
from tests.nodes import PATIENCE_SECONDS, eventually, prompt, running
from tests.pools import pool
from tests.transfer.tcp_rig import DENSE, SPEC, TOKENS, stored


def misses(counters: dict[str, int]) -> dict[str, int]:
    """Of Match calls, by their reasons."""
    return {name: count for name, count in counters.items() if name.startswith("match_miss")}


def test_a_prompt_that_another_node_has_is_no_miss_and_one_that_nobody_has_is_one() -> None:
    with pool() as nodes:
        first, second = knowing([nodes.node(name, "tests.unhurried") for name in "ab"])
        blocks = prompt(1, 4)
        first.put(blocks)
        eventually(lambda: second.match(blocks) == (4, pb.HIT), PATIENCE_SECONDS)
        before = misses(second.counters())
        for _ in range(3):
            assert second.match(blocks) == (4, pb.HIT)
        assert misses(second.counters()) == before
        first.ask("Remove", **first.about(blocks.between(3, 4)))
        eventually(lambda: second.match(blocks) == (3, pb.ABSENT), PATIENCE_SECONDS)
        before = misses(second.counters())
        assert second.match(blocks) == (3, pb.ABSENT)
        after = misses(second.counters())
        (name,) = (name for name, count in after.items() if count != before.get(name, 0))
        assert name == "match_miss.absent" and after[name] == before.get(name, 0) + 1


@pytest.mark.parametrize("way", ["tcp", "shm"])
def test_bytes_that_are_read_over_a_connection_are_not_counted_as_read_in_place(way: str) -> None:
    with (
        running(dram="64MiB", slab="4MiB", listen="127.0.0.1:0") as node,
        Client.at(node.address, SPEC, deadline_seconds=PATIENCE_SECONDS, transport=way) as client,
    ):
        chain, truth = stored(client)
        into = Cache(SPEC, TOKENS, **DENSE)
        assert client.get(chain, into.memory(client)).blocks == len(chain) and into.holds(truth)
        counted = node.caller().counters()
        assert (counted["opened_bytes"] > 0) == (way == "shm")
        assert (counted["data_sent_bytes"] > 0) == (way == "tcp")
