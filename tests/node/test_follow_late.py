"""Who comes to follow a block once all of it is here.

writer ──block 1──▶ node a ──▶ node b ──▶ two readers, one after the other, that have block 0
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore.client import Client
from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import SPEC, Caller, eventually, payload
from tests.pools import pool


class Late:
    """The two blocks, of which node b has followed the second for a first reader."""

    def __init__(self, pair: Pair) -> None:
        self.blocks, writer = pair.new(2), pair.a.caller()
        windows = writer.reserve(self.blocks, hand_off=True)
        self.hand_offs, self.data = windows.hand_offs[1:], payload(self.blocks.hashes[1])
        first = eventually(lambda: self.opened(pair.at_b), KNOWN_SECONDS)[0]
        for window, name in zip(windows.handles, self.blocks.hashes, strict=True):
            writer.write(window, payload(name))
        writer.ask("Seal", handles=list(windows.handles))
        assert pair.at_b.read(first) == self.data
        eventually(lambda: pair.at_a.stats().pins == 0, KNOWN_SECONDS)

    def opened(self, reader: Caller) -> list[bytes]:
        about = reader.about(self.blocks) | {"hashes": self.blocks.hashes[1:]}
        reply = reader.ask("Open", **about, hand_offs=self.hand_offs)
        return [handle for handle in reply.handles if handle]


def test_who_comes_later_has_what_was_followed_without_what_stands_before_it() -> None:
    with pool() as nodes:
        pair = Pair(nodes, nodes.node("a"), nodes.node("b"))
        late, sent = Late(pair), pair.at_a.counters()["data_sent_bytes"]
        [second] = late.opened(pair.at_b)
        assert pair.at_b.read(second) == late.data
        assert pair.at_a.counters()["data_sent_bytes"] == sent, "it comes once"


def test_who_comes_when_it_is_on_ssd_alone_has_it_from_its_writer() -> None:
    with pool() as nodes:
        pair = Pair(nodes, nodes.node("a"), nodes.node("b", ssd="16MiB"))
        late, count = Late(pair), pair.at_b.stats().blocks
        eventually(lambda: pair.at_b.counters()["stored_blocks"] == count, KNOWN_SECONDS)
        pair.b.kill()
        pair.b.start()
        tensors: list[Any] = [np.zeros((2, 8, 2, 8), np.float16) for _ in range(2)]
        with Client.at(pair.b.directory, SPEC, deadline_seconds=KNOWN_SECONDS) as client:

            def read() -> bool:
                memory = client.memory(tensors, "htkd")
                given = {"first": 1, "hand_offs": late.hand_offs}
                with client.reader(late.blocks, memory, **given) as reader:
                    return reader.wait(KNOWN_SECONDS) and reader.blocks == 1

            eventually(read, KNOWN_SECONDS)
        assert b"".join(one[:, 4:].tobytes() for one in tensors) == late.data
