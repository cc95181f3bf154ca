"""A prompt that one engine stored comes back to another byte for byte, or it is a miss."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvstore.engine.connectors.lmcache import backend
from tests.connectors.lmcache.engine import (
    CHUNK,
    DIM,
    HEADS,
    LAYERS,
    PLUGIN,
    Engine,
    settings,
)
from tests.nodes import Caller, NodeProcess, eventually

Engines = Callable[..., Engine]
numbers = itertools.count(1)
MLA = {"kv_shape": (LAYERS, 1, CHUNK, 1, 24), "use_mla": True}


def prompt(chunks: int, more: int = 0) -> list[int]:
    """Tokens that no other test has."""
    return [next(numbers)] * (chunks * CHUNK + more)


@pytest.mark.parametrize(
    "metadata",
    [
        *({"kv_dtype": one} for one in (torch.bfloat16, torch.float16, torch.float32)),
        *({"kv_dtype": one} for one in (torch.float8_e4m3fn, torch.uint8)),
        {"kv_shape": (1, 2, CHUNK, 1, DIM)},
        {"kv_shape": (LAYERS, 2, CHUNK, 5, DIM), "world_size": 4, "worker_id": 3},
    ],
    ids=str,
)
def test_a_prompt_comes_back_byte_for_byte(engine_of: Engines, metadata: Any) -> None:
    tokens, ours, theirs = prompt(5), engine_of(metadata=metadata), engine_of(metadata=metadata)
    ours.kv.fill(1)
    assert theirs.lookup(tokens) == 0
    ours.store(tokens)
    assert theirs.lookup(tokens, "a request") == len(tokens)
    theirs.kv.fill(2)
    beyond = theirs.kv.bytes(len(tokens), 8 * CHUNK)
    assert theirs.retrieve(tokens, "a request") == len(tokens)
    theirs.engine.lookup_unpin("a request")
    size = (0, len(tokens))
    assert torch.equal(theirs.kv.bytes(*size), ours.kv.bytes(*size))
    assert torch.equal(theirs.kv.bytes(len(tokens), 8 * CHUNK), beyond)
    assert ours.memory_in_use == theirs.memory_in_use == 0
    assert ours.manager.memcheck() and theirs.manager.memcheck()


def test_a_latent_cache_comes_back_byte_for_byte(engine_of: Engines) -> None:
    # Not by way of LMCache's engine: what its ranks broadcast to each other wants a GPU's streams.
    ours, theirs = engine_of(metadata=MLA, config={"chunk_size": CHUNK}), engine_of(metadata=MLA)
    keys, tensors = put(ours, prompt(3))
    got = theirs.manager.batched_get(keys, location=PLUGIN)
    assert all(torch.equal(one.tensor, made) for one, made in zip(got, tensors, strict=True))
    assert {one.metadata.fmt.name for one in got} == {"KV_MLA_FMT"}


def test_a_latent_cache_is_found_by_engines_of_another_number_of_ranks(engine_of: Engines) -> None:
    ours, theirs = (engine_of(metadata=MLA | {"world_size": ranks}) for ranks in (2, 4))
    tokens = prompt(3)
    put(ours, tokens)
    assert theirs.plugin.batched_contains(theirs.keys(tokens), pin=True) == 3


def put(engine: Engine, tokens: list[int]) -> tuple[list[Any], list[torch.Tensor]]:
    """Store a prompt's chunks as LMCache's manager does, in a scrambled order of memory."""
    keys = engine.keys(tokens)
    shapes, dtypes = engine.metadata.get_shapes(), engine.metadata.get_dtypes()
    fmt = engine.engine.fmt or engine.plugin._facts.format
    objs = [engine.manager.allocate(shapes, dtypes, fmt) for _ in keys][::-1]
    for seed, one in enumerate(objs):
        drawn = torch.Generator().manual_seed(seed)
        one.tensor.copy_(torch.randn(one.get_shape(), generator=drawn).to(one.get_dtype()))
    tensors = [one.tensor.clone() for one in objs]
    engine.manager.batched_put(keys, objs)
    engine.wait(keys)
    return keys, tensors


def test_chunks_put_and_got_together_are_each_where_they_belong(engine_of: Engines) -> None:
    ours, theirs = engine_of(), engine_of()
    keys, tensors = put(ours, prompt(4))
    absent = theirs.keys(prompt(1))
    asked = [keys[2], *absent, keys[0], keys[3], keys[1]]
    got = theirs.plugin.batched_get_blocking(asked)
    assert got[1] is None
    for one, index in zip((got[0], got[2], got[3], got[4]), (2, 0, 3, 1), strict=True):
        assert torch.equal(one.tensor, tensors[index])
        assert one.get_ref_count() == 1
        one.ref_count_down()
    assert theirs.plugin.get_blocking(absent[0]) is None
    assert theirs.memory_in_use == ours.memory_in_use == 0


def test_a_chunk_lies_in_the_pool_by_layer_and_head(engine_of: Engines, shared: Caller) -> None:
    ours = engine_of()
    keys, tensors = put(ours, prompt(2))
    client = ours.plugin._node._client
    blocks = client.keyed([key.to_string() for key in keys])
    _, found = shared.get(blocks, client.space.spec)
    for one, made in zip(found, tensors, strict=True):
        parted = made.view(2, LAYERS, CHUNK, HEADS, DIM).permute(1, 3, 2, 0, 4)  # l h t k d
        assert one == bytes(parted.contiguous().view(torch.uint8).numpy())


def test_many_chunks_move_in_pieces(engine_of: Engines, monkeypatch: Any) -> None:
    ours, theirs = engine_of(), engine_of()
    for one in (ours, theirs):
        monkeypatch.setattr(one.plugin._node, "_piece", 2)
    tokens = prompt(5)
    ours.kv.fill(3)
    ours.store(tokens)
    assert theirs.retrieve(tokens) == len(tokens)
    assert torch.equal(theirs.kv.bytes(0, len(tokens)), ours.kv.bytes(0, len(tokens)))


def test_behind_a_piece_that_is_not_whole_nothing_is_loaded(
    engine_of: Engines, monkeypatch: Any
) -> None:
    """LMCache uses none of it, and where the holder is slow each piece would wait a deadline."""
    tokens, ours = prompt(7), engine_of()
    node, asked = ours.plugin._node, []
    ours.kv.fill(3)
    ours.store(tokens)
    assert ours.lookup(tokens, "a request") == len(tokens)
    ours.plugin.remove(ours.keys(tokens)[3])
    load = node._load

    def seen(names: Any, chunks: Any) -> list[bool]:
        asked.append(len(names))
        return load(names, chunks)

    monkeypatch.setattr(node, "_piece", 2)
    monkeypatch.setattr(node, "_load", seen)
    assert ours.retrieve(tokens, "a request") == 3 * CHUNK
    assert asked == [2, 2]
    ours.engine.lookup_unpin("a request")
    assert ours.memory_in_use == 0


def test_a_chunk_that_was_removed_ends_the_prefix(engine_of: Engines) -> None:
    tokens, ours = prompt(4), engine_of()
    ours.kv.fill(1)
    ours.store(tokens)
    keys = ours.keys(tokens)
    assert ours.plugin.remove(keys[2]) is True and ours.plugin.remove(keys[2]) is False
    assert ours.lookup(tokens) == ours.retrieve(tokens) == 2 * CHUNK
    assert ours.plugin.contains(keys[3]), "it is there, and found when the hole is filled"
    ours.past_doubt()
    ours.store(tokens)
    assert ours.lookup(tokens) == len(tokens)
    assert ours.plugin.batched_remove(keys) == 4 and ours.lookup(tokens) == 0


def test_a_short_last_chunk_is_refused_by_name(engine_of: Engines, heard: list[str]) -> None:
    ours = engine_of(config={"save_unfull_chunk": True})
    ours.kv.fill(1)
    for more in (5, 6):
        tokens = prompt(2, more)
        ours.store(tokens)
        assert ours.lookup(tokens) == 2 * CHUNK
    [said] = heard
    assert "save_unfull_chunk: a chunk of fewer tokens than 16, full ones are kept" in said


def test_what_a_lookup_pins_is_kept_until_it_is_unpinned(
    engine_of: Engines, shared: Caller
) -> None:
    tokens, ours = prompt(3), engine_of()
    ours.store(tokens)
    for name in ("one", "another"):
        assert ours.lookup([*tokens, *prompt(1)], name) == len(tokens)
    assert shared.stats().pins == 6
    ours.engine.lookup_unpin("one")
    assert shared.stats().pins == 3
    ours.engine.lookup_unpin("another")
    assert shared.stats().pins == 0
    key = ours.keys(tokens)[0]
    assert ours.plugin.unpin(key) is False, "not any more"
    assert ours.plugin.pin(key) and ours.plugin.contains(key, pin=True)
    assert shared.stats().pins == 2
    assert ours.plugin.unpin(key) and ours.plugin.unpin(key) and not ours.plugin.unpin(key)
    assert ours.plugin.pin(ours.keys(prompt(1))[0]) is False
    assert shared.stats().pins == 0


def test_a_pin_that_nobody_ends_ends_by_its_time(engine_of: Engines, shared: Caller) -> None:
    tokens, ours = prompt(1), engine_of(pin_ms=1)
    ours.store(tokens)
    assert ours.lookup(tokens, "aborted") == CHUNK
    eventually(lambda: not ours.plugin.unpin(ours.keys(tokens)[0]))
    eventually(lambda: shared.stats().pins == 0)


def test_each_chunk_that_is_in_the_pool_is_told_of_once(engine_of: Engines) -> None:
    ours, told = engine_of(), []
    keys = ours.keys(prompt(3))
    shapes, dtypes = ours.metadata.get_shapes(), ours.metadata.get_dtypes()
    objs = [ours.manager.allocate(shapes, dtypes) for _ in keys]

    def tell(key: Any) -> None:
        told.append(key)
        raise ValueError("of LMCache's own making")

    [future] = ours.plugin.batched_submit_put_task(keys, objs, on_complete_callback=tell)
    future.result(10)
    assert told == keys and ours.plugin.batched_contains(keys) == 3
    for one in objs:
        assert one.get_ref_count() == 1
        one.ref_count_down()


def test_more_chunks_than_may_wait_are_dropped_and_said_once(
    engine_of: Engines, heard: list[str]
) -> None:
    tokens, ours = prompt(5), engine_of(pending_chunks=2)
    ours.store(tokens)
    assert ours.lookup(tokens) == 2 * CHUNK
    assert heard[-1] == "Moonpool: 2 chunks wait to be stored, more are dropped"
    assert ours.memory_in_use == 0


def test_no_room_in_lmcache_s_memory_is_a_miss(engine_of: Engines, heard: list[str]) -> None:
    tokens, ours = prompt(3), engine_of(deadline_ms=300)
    ours.store(tokens)
    shapes, dtypes = ours.metadata.get_shapes(8), ours.metadata.get_dtypes()
    held = []
    while one := ours.manager.allocate(shapes, dtypes, eviction=False):
        held.append(one)
    assert ours.lookup(tokens) == len(tokens) and ours.retrieve(tokens) == 0
    assert "no room" in heard[0]
    for one in held:
        one.ref_count_down()
    assert ours.retrieve(tokens) == len(tokens)


def test_no_more_is_found_of_a_prompt_than_lmcache_s_memory_can_load(
    engine_of: Engines, heard: list[str]
) -> None:
    tokens, large = prompt(6), {"kv_shape": (20, 2, CHUNK, 32, 64)}  # 2.5 MiB a chunk
    engine_of(metadata=large).store(tokens)
    ours = engine_of(metadata=large, config={"max_local_cpu_size": 0.01, "local_cpu": True})
    for _ in range(2):  # the second time LMCache has them itself, in the same memory
        assert ours.lookup(tokens, "a request") == 4 * CHUNK
        assert ours.retrieve(tokens[: 4 * CHUNK], "a request") == 4 * CHUNK
        ours.engine.lookup_unpin("a request")
    [said] = heard
    assert "max_local_cpu_size has room for 4 chunks" in said


def test_a_load_of_more_than_lmcache_s_memory_holds_does_not_wait_for_room(
    engine_of: Engines, monkeypatch: Any
) -> None:
    tokens, large = prompt(6), {"kv_shape": (20, 2, CHUNK, 32, 64)}
    engine_of(metadata=large).store(tokens)
    ours = engine_of(metadata=large, config={"max_local_cpu_size": 0.01})
    waits: list[float] = []
    monkeypatch.setattr(backend.time, "sleep", waits.append)
    assert ours.retrieve(tokens) == 4 * CHUNK and not waits


def test_the_rank_that_loads_for_all_is_promised_what_its_own_memory_holds(
    engine_of: Engines, shared_node: NodeProcess
) -> None:
    tokens = prompt(6)
    large = MLA | {"kv_shape": (20, 1, CHUNK, 1, 4096)}
    engine_of(metadata=large, config={"max_local_cpu_size": 0.1}).store(tokens)
    small = {"max_local_cpu_size": 0.01}
    assert engine_of(metadata=large, config=small).lookup(tokens) == 4 * CHUNK
    extra = settings(shared_node.address) | {"first_rank_max_local_cpu_size": 0.1}
    first = engine_of(metadata=large, config=small | {"extra_config": extra})
    assert first.lookup(tokens) == 6 * CHUNK == first.retrieve(tokens)


class Lookups:
    """Where LMCache answers its scheduler."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}

    def send_response_to_scheduler(self, lookup_id: str, tokens: int) -> None:
        self.answers[lookup_id] = tokens


def test_an_engine_that_loads_ahead_gets_the_same_bytes(engine_of: Engines, shared: Caller) -> None:
    tokens, lookups, ours = prompt(4), Lookups(), engine_of()
    theirs = engine_of(config={"enable_async_loading": True}, lookups=lookups)
    ours.kv.fill(5)
    ours.store(tokens)
    for name, asked in (("hit", tokens), ("part", tokens[:-1]), ("miss", prompt(2))):
        theirs.engine.async_lookup_and_prefetch(name, torch.tensor(asked), pin=True)
        eventually(lambda name=name: name in lookups.answers)
    assert lookups.answers == {"hit": 4 * CHUNK, "part": 3 * CHUNK, "miss": 0}
    assert theirs.retrieve(tokens, "hit") == len(tokens)
    assert torch.equal(theirs.kv.bytes(0, len(tokens)), ours.kv.bytes(0, len(tokens)))
    theirs.engine.cleanup_memory_objs("part")
    assert theirs.memory_in_use == 0
    assert shared.stats().pins == 0, "the load ends what the lookup pinned"


def test_loading_ahead_ends_at_the_first_hole(engine_of: Engines) -> None:
    tokens, ours = prompt(3), engine_of()
    ours.store(tokens)
    keys = ours.keys(tokens)
    ours.plugin.remove(keys[1])
    found = asyncio.run(ours.plugin.batched_get_non_blocking("a lookup", keys))
    assert len(found) == 1 and asyncio.run(ours.plugin.batched_async_contains("a", keys)) == 1
    later = ours.manager.get_non_blocking(keys[2], location=PLUGIN)
    for one in (*found, later.result(10)):
        one.ref_count_down()
    assert ours.memory_in_use == 0


def test_a_scheduler_looks_up_and_loads_nothing(engine_of: Engines) -> None:
    tokens, ours = prompt(2), engine_of()
    ours.store(tokens)
    scheduler = engine_of(metadata={"role": "scheduler"})
    assert scheduler.lookup(tokens) == len(tokens)
    assert scheduler.plugin.batched_get_blocking(ours.keys(tokens)) == [None, None]


def test_shapes_of_this_file_are_lmcache_s_own(engine_of: Engines) -> None:
    assert list(engine_of().metadata.get_shapes()[0]) == [2, LAYERS, CHUNK, HEADS * DIM]
