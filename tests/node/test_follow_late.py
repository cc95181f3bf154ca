"""Who comes to follow a block once all of it is here.

writer ──block 1──▶ node a ──▶ node b ──▶ two readers, one after the other, that have block 0
"""

from __future__ import annotations

from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import eventually, payload
from tests.pools import pool


def test_who_comes_later_has_what_was_followed_without_what_stands_before_it() -> None:
    with pool() as nodes:
        pair = Pair(nodes, nodes.node("a"), nodes.node("b"))
        blocks, writer = pair.new(2), pair.a.caller()
        windows = writer.reserve(blocks, hand_off=True)
        asked = pair.at_b.about(blocks) | {
            "hashes": blocks.hashes[1:],
            "hand_offs": windows.hand_offs[1:],
        }

        def opened() -> list[bytes]:
            return [handle for handle in pair.at_b.ask("Open", **asked).handles if handle]

        first = eventually(opened, KNOWN_SECONDS)[0]
        followed = pair.at_b.counters()["followed_blocks"]
        for window, name in zip(windows.handles, blocks.hashes, strict=True):
            writer.write(window, payload(name))
        writer.ask("Seal", handles=list(windows.handles))
        assert pair.at_b.read(first) == payload(blocks.hashes[1])
        eventually(lambda: pair.at_a.stats().pins == 0, KNOWN_SECONDS)
        [second] = opened()
        assert pair.at_b.read(second) == payload(blocks.hashes[1])
        assert pair.at_b.counters()["followed_blocks"] == followed + 1, "it comes once"
