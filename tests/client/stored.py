"""A sequence in a node of its own, whose bytes a test may harm."""

from __future__ import annotations

from typing import Any

from kvstore.client import Client, Match
from tests.client.kv import Cache, truth_of

TOKENS, BLOCKS = 30, 4


class Stored:
    """A sequence in a node of its own, and the places of its blocks there."""

    def __init__(self, client: Client) -> None:
        self.client, self.spec = client, client.space.spec
        self.truth = truth_of(self.spec, TOKENS, 1)
        self.chain = client.chain(range(TOKENS))
        self.source = Cache(self.spec, TOKENS)
        self.source.fill(self.truth)
        writer = client.writer(self.chain)
        writer.put(self.source.memory(client))
        writer.seal()
        self.offsets = writer._slots.offsets

    def flip(self, block: int, at: int) -> None:
        """One bit, through the mapping that writers use."""
        transport: Any = self.client.connection.link().transport
        transport._writing.bytes[self.offsets[block] + at] ^= 0x10

    def got(self) -> Match:
        target = Cache(self.spec, TOKENS, axes="kpthd", seed=3)
        found = self.client.get(self.chain, target.memory(self.client))
        assert target.holds(self.truth, 0, found.tokens)
        return found
