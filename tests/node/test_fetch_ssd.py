"""Blocks that a node has on SSD, behind one that only another node has.

node a: 0 1 2 3        node b, started again: 1 2 3
"""

from __future__ import annotations

from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import eventually, payload
from tests.pools import pool


def test_what_is_on_ssd_behind_a_block_that_is_fetched_is_opened_with_it() -> None:
    with pool() as nodes:
        a = nodes.node("a", "tests.unhurried")
        pair = Pair(nodes, a, nodes.node("b", "tests.unhurried", ssd="16MiB"))
        blocks = pair.stored(4)
        behind = pair.at_b.about(blocks) | {"hashes": blocks.hashes[1:]}

        def here() -> bool:
            pair.at_b.ask("Open", **behind)
            return pair.at_b.stats().blocks_unlisted == 3

        eventually(here, KNOWN_SECONDS)
        count = pair.at_b.stats().blocks
        eventually(lambda: pair.at_b.counters()["stored_blocks"] == count, KNOWN_SECONDS)
        pair.b.kill()
        reader = pair.b.start().caller()
        assert reader.stats().blocks_unlisted == 3
        eventually(lambda: reader.match(blocks)[0] == 4, KNOWN_SECONDS)
        reply = reader.ask("Open", **reader.about(blocks))
        assert list(reply.outcomes) == [pb.HIT] * 4
        assert list(map(reader.read, reply.handles)) == [payload(one) for one in blocks.hashes]
