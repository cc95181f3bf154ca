"""Six blocks of known bytes under keys of an engine's own, and what a client says of them."""

from __future__ import annotations

from typing import Any

from kvstore.client import Client, Keyed
from tests.client.kv import Cache, truth_of

BLOCKS, SIZE = 6, 8
TOKENS = BLOCKS * SIZE


class Stored:
    """Six blocks of known bytes under six keys, and a place to load them to."""

    def __init__(self, client: Client, name: str = "page", pages: int = 16) -> None:
        self.client, self.spec = client, client.space.spec
        self.truth = truth_of(self.spec, TOKENS, 1)
        self.blocks = client.keyed([f"{name}-{i}" for i in range(BLOCKS)])
        self.source = Cache(self.spec, TOKENS, page_tokens=pages)
        self.source.fill(self.truth)
        assert client.store_each(self.blocks, self.source.memory(client)) == [True] * BLOCKS

    def only(self, *rows: int) -> Keyed:
        return Keyed(tuple(self.blocks.hashes[row] for row in rows), SIZE)

    def loaded(self, **layout: Any) -> list[bool]:
        """Load all; what is said to be loaded is compared with the truth, byte for byte."""
        target = Cache(self.spec, TOKENS, **{"axes": "kpthd", "seed": 3, **layout})
        found = self.client.load_each(self.blocks, target.memory(self.client))
        for row, there in enumerate(found):
            first, last = row * SIZE, (row + 1) * SIZE
            assert not there or target.holds(self.truth, first, last)
        if found == [True] * BLOCKS:
            assert target.untouched(0, TOKENS)
        return found


def said(*rows: int) -> list[bool]:
    return [row in rows for row in range(BLOCKS)]
