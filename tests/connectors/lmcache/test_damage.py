"""One flipped bit is a miss of that chunk and of what builds on it: no engine gets it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvstore.spec import KVSpec
from tests.connectors.lmcache.engine import CHUNK, Engine
from tests.nodes import Caller, mapped

Engines = Callable[..., Engine]


def flip(caller: Caller, engine: Engine, tokens: list[int], chunk: int) -> None:
    """Change one bit of a chunk's bytes where they lie in the node's memory."""
    client = engine.plugin._node._client
    assert isinstance(client.space.spec, KVSpec)
    blocks = client.keyed([key.to_string() for key in engine.keys(tokens)])
    opened = caller.ask("Open", namespace=client.space.digest, hashes=blocks.hashes)
    caller.ask("Close", handles=opened.handles)
    with mapped(caller) as arena:
        arena.bytes[opened.slot_offsets[chunk] + client.space.layout.head_bytes + 77] ^= 4


def test_a_flipped_bit_is_a_miss_until_the_chunk_is_stored_again(
    engine_of: Engines, shared: Caller
) -> None:
    tokens, ours, theirs = [7] * 4 * CHUNK, engine_of(), engine_of()
    ours.kv.fill(1)
    ours.store(tokens)
    flip(shared, ours, tokens, 2)
    assert theirs.lookup(tokens, "a request") == len(tokens), "nobody has looked at it yet"
    assert theirs.retrieve(tokens, "a request") == 2 * CHUNK
    theirs.engine.lookup_unpin("a request")
    assert torch.equal(theirs.kv.bytes(0, 2 * CHUNK), ours.kv.bytes(0, 2 * CHUNK))
    assert not theirs.kv.bytes(2 * CHUNK, 4 * CHUNK).any()
    assert shared.counters()["damaged_blocks"] == 1
    assert theirs.lookup(tokens) == 2 * CHUNK, "the node was told"
    assert theirs.memory_in_use == 0
    ours.store(tokens)
    assert theirs.retrieve(tokens) == len(tokens)
    assert torch.equal(theirs.kv.bytes(0, len(tokens)), ours.kv.bytes(0, len(tokens)))
