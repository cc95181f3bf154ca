"""The beginning of a conversation stays in the pool as long as its end. LMCache has it itself, so
no lookup asks for it, and without it the rest is found no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvstore.engine.connectors.lmcache.order import Order
from tests.connectors.lmcache.engine import CHUNK, Engine, settings
from tests.nodes import NodeProcess, running

TURNS, OTHERS = 6, 60  # chunks that come in a turn each, and prompts of others between two
Make = Callable[..., Engine]


@pytest.fixture
def small() -> Iterator[NodeProcess]:
    with running(dram="4MiB", slab="1MiB") as node:
        yield node


def tokens_of(conversation: int, chunks: int) -> list[int]:
    return [conversation * 100 + at // CHUNK for at in range(chunks * CHUNK)]


def turn(engine: Engine, tokens: list[int]) -> None:
    """Look a prompt up and store what was not found of it, as the connector of vLLM does."""
    found = engine.lookup(tokens, "turn")
    engine.engine.lookup_unpin("turn")
    engine.store(tokens, skip=found)


@pytest.mark.parametrize("own_memory", [True, False])
def test_a_conversation_is_found_from_its_beginning_to_its_last_turn(
    make: Make, small: NodeProcess, own_memory: bool
) -> None:
    """Whether the engine's lookups stop at LMCache's own memory or come to the pool."""
    extra = settings(small.address)
    theirs = make(extra, config={"local_cpu": own_memory})
    others, reader = make(extra), make(extra)
    for at in range(1, TURNS + 1):
        turn(theirs, tokens_of(1, at))
        for other in range(OTHERS):
            others.store(tokens_of(1_000 * at + other, 8))
    assert reader.lookup(tokens_of(2_001, 8)) == 0, "the others' first prompts made room"
    assert reader.lookup(tokens_of(1, TURNS)) == TURNS * CHUNK


def test_a_chunk_is_stored_also_where_what_is_before_it_is_not_in_the_pool(
    engine_of: Make,
) -> None:
    """The engine that stored it may have the rest in its own memory."""
    ours = engine_of(config={"local_cpu": True})
    tokens = tokens_of(9, 3)
    ours.lookup(tokens)
    ours.store(tokens, skip=2 * CHUNK)
    keys = ours.keys(tokens)
    assert [ours.plugin.contains(key) for key in keys] == [False, False, True]


def test_what_was_named_first_is_forgotten_first(engine_of: Make) -> None:
    keys = engine_of().keys(tokens_of(3, 6))
    order = Order(most=3)
    order.tell(keys[:4])
    order.tell(keys[:2])
    order.tell(keys[3:5])
    before = [order.before(key) for key in keys]
    assert before == ["", keys[0].to_string(), "", keys[2].to_string(), keys[3].to_string(), ""]


def test_a_line_of_chunks_is_whole_where_a_prompt_was_named_from_its_first(engine_of: Make) -> None:
    keys = engine_of().keys(tokens_of(6, 4))
    hashes = [key.chunk_hash for key in keys]
    order = Order()
    order.tell(keys[1:])
    assert order.line(keys[3]) == (hashes[2:0:-1], False)
    order.begin(keys[:2])
    assert order.line(keys[3]) == (hashes[2::-1], True)
    assert order.line(keys[0]) == ([], True)
    order.tell([keys[3], keys[0]])
    assert order.line(keys[0]) == ([hashes[3], hashes[2], hashes[1], hashes[0]], False), "a ring"


def test_what_is_before_a_chunk_has_its_tags_and_its_rank(engine_of: Make) -> None:
    first, second = engine_of().keys(tokens_of(4, 2))
    order = Order()
    order.tell([first, second])
    options: dict[str, Any] = {"worker_id": 3, "request_configs": {"lmcache.tag.lora": "a"}}
    tagged = [replace(one, **options) for one in (first, second)]
    assert order.before(tagged[1]) == tagged[0].to_string() != first.to_string()


def test_lookups_that_lmcache_s_event_loop_awaits_are_heard_too(engine_of: Make) -> None:
    ours = engine_of(config={"local_cpu": True})
    keys = ours.keys(tokens_of(5, 3))
    memory = ours.manager.storage_backends["LocalCPUBackend"]
    assert asyncio.run(memory.batched_async_contains("a lookup", keys, False)) == 0
    assert ours.plugin._order.before(keys[2]) == keys[1].to_string()
