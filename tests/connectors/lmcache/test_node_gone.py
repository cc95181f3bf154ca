"""No engine dies of the pool: a node that is gone is a miss, in bounded time, and said once."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.connectors.lmcache.engine import CHUNK, PLUGIN, Engine, settings
from tests.nodes import NodeProcess, eventually, running

FAR_BEYOND_ANY_DEADLINE = 20.0
DEADLINE_MS = 300
TOKENS, OTHERS = [1] * 3 * CHUNK, [2] * 2 * CHUNK


@pytest.fixture
def engine(node: NodeProcess, make: Callable[..., Engine]) -> Engine:
    made = make(settings(str(node.directory), deadline_ms=DEADLINE_MS))
    made.kv.fill(1)
    return made


def of_the_node(heard: list[str]) -> list[str]:
    """What was said, but for the line that a load came back short."""
    return [one for one in heard if "could not be loaded" not in one]


def asked_of_nobody(engine: Engine) -> None:
    """Every call ends, with nothing, and nothing is left behind."""
    begun, plugin = time.monotonic(), engine.plugin
    keys = engine.keys(TOKENS)
    assert engine.retrieve(TOKENS) == engine.lookup(TOKENS) == engine.lookup(TOKENS, "one") == 0
    engine.store(OTHERS)
    assert not plugin.contains(keys[0]) and not plugin.pin(keys[0]) and not plugin.unpin(keys[0])
    assert plugin.get_blocking(keys[0]) is None and plugin.batched_get_blocking(keys) == [None] * 3
    assert plugin.remove(keys[0]) is False and plugin.batched_remove(keys) == 0
    assert asyncio.run(plugin.batched_async_contains("two", keys, pin=True)) == 0
    assert asyncio.run(plugin.batched_get_non_blocking("two", keys)) == []
    assert engine.memory_in_use == 0
    assert time.monotonic() - begun < FAR_BEYOND_ANY_DEADLINE


def test_a_killed_node_is_a_miss_and_is_said_once(
    node: NodeProcess, engine: Engine, heard: list[str]
) -> None:
    engine.store(TOKENS)
    assert engine.retrieve(TOKENS) == len(TOKENS)
    assert heard == []
    node.kill()
    for _ in range(3):
        asked_of_nobody(engine)
    [said] = of_the_node(heard)
    assert str(node.directory) in said and len(heard) == 2, heard


def test_a_node_that_dies_between_a_lookup_and_its_load_is_a_miss(
    node: NodeProcess, engine: Engine
) -> None:
    engine.store(TOKENS)
    assert engine.lookup(TOKENS, "a request") == len(TOKENS)
    node.kill()
    assert engine.retrieve(TOKENS, "a request") == 0
    engine.engine.lookup_unpin("a request")
    assert engine.memory_in_use == 0


def test_a_node_that_stopped_answering_is_a_miss_by_the_deadline_and_comes_back(
    node: NodeProcess, engine: Engine, heard: list[str]
) -> None:
    engine.store(TOKENS)
    node.signal(signal.SIGSTOP)
    asked_of_nobody(engine)
    node.signal(signal.SIGCONT)
    eventually(lambda: engine.lookup(TOKENS) == len(TOKENS))
    assert engine.retrieve(TOKENS) == len(TOKENS)
    assert [one.partition(str(node.directory))[2].split(",")[0] for one in of_the_node(heard)] == [
        " is not used",
        " answers again",
    ]


def test_an_engine_that_started_without_a_node_finds_it_when_it_comes(
    node: NodeProcess, make: Callable[..., Engine], heard: list[str]
) -> None:
    node.kill()
    engine = make(settings(str(node.directory), deadline_ms=DEADLINE_MS))
    asked_of_nobody(engine)
    node.start()
    eventually(lambda: engine.plugin._node.answers)
    engine.past_doubt()
    engine.store(TOKENS)
    assert engine.lookup(TOKENS) == engine.retrieve(TOKENS) == len(TOKENS)
    assert len(of_the_node(heard)) == 2, heard


@pytest.mark.parametrize("error", [OSError("of the network"), ValueError("of our own making")])
def test_whatever_a_call_raises_is_a_miss_and_is_said_once(
    engine: Engine, heard: list[str], monkeypatch: Any, error: Exception
) -> None:
    engine.store(TOKENS)
    client = engine.plugin._node._client

    def fail(*_: Any) -> None:
        raise error

    for name in ("exists_each", "load_each", "store_each", "remove", "register", "keyed"):
        monkeypatch.setattr(client, name, fail)
    asked_of_nobody(engine)
    [said] = of_the_node(heard)
    assert repr(error) in said, heard


def test_what_the_node_refuses_for_good_is_said_once_and_the_node_is_not_gone(
    engine: Engine, heard: list[str]
) -> None:
    engine.store(TOKENS)
    engine.plugin._node._client.quarantine("an audit")
    for _ in range(3):
        assert engine.lookup(TOKENS) == 0
        engine.store(OTHERS)
    [said] = heard
    assert said.startswith("Moonpool: chunks are not kept: ") and "gave wrong KV" in said


def test_a_node_that_takes_no_more_is_said_once(
    make: Callable[..., Engine], heard: list[str]
) -> None:
    with running(dram="4MiB", slab="1MiB") as small:
        engine = make(settings(small.address, pin_ms=600_000))
        full = False
        for number in range(1_000, 1_200):
            tokens = [number] * 8 * CHUNK
            engine.store(tokens)
            full = full or engine.lookup(tokens, str(number)) < len(tokens)  # and holds them
        assert full
    [said] = [one for one in heard if "chunks are not stored though" in one]
    assert small.address in said


def test_a_load_that_nobody_awaits_any_more_gives_its_memory_back(
    engine: Engine, monkeypatch: Any
) -> None:
    engine.store(TOKENS)
    load, go_on = engine.plugin._node.load, threading.Event()
    monkeypatch.setattr(engine.plugin._node, "load", lambda *given: go_on.wait(20) and load(*given))

    async def give_up() -> None:
        asked = engine.plugin.batched_get_non_blocking("a lookup", engine.keys(TOKENS))
        await asyncio.wait_for(asked, 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert engine.memory_in_use > 0
    go_on.set()
    eventually(lambda: engine.memory_in_use == 0)


def test_stores_that_a_dead_node_holds_up_give_their_memory_back(
    node: NodeProcess, engine: Engine
) -> None:
    node.signal(signal.SIGSTOP)
    engine.engine.store(torch.tensor(TOKENS))
    assert any(engine.plugin.exists_in_put_tasks(key) for key in engine.keys(TOKENS))
    engine.wait(engine.keys(TOKENS))
    assert engine.memory_in_use == 0


def test_lmcache_keeps_its_memory_until_the_store_under_way_has_ended(
    engine: Engine, monkeypatch: Any
) -> None:
    node, entered, go_on, seen = engine.plugin._node, threading.Event(), threading.Event(), []
    store = node._store

    def slow(names: Any, before: Any, chunks: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        seen.append(chunks[0].tensor.clone())
        return store(names, before, chunks)

    monkeypatch.setattr(node, "_store", slow)
    freed = threading.Event()
    allocator = engine.manager.allocator_backend.memory_allocator
    free = allocator.close
    monkeypatch.setattr(allocator, "close", lambda: (freed.set(), free()))
    engine.engine.store(torch.tensor(TOKENS))
    assert entered.wait(20)
    closing = threading.Thread(target=engine.manager.close)
    closing.start()
    assert not freed.wait(0.2), "LMCache closes its memory before its plug-ins"
    go_on.set()
    closing.join(20)
    assert freed.is_set() and len(seen) == 1
    assert torch.equal(seen[0].view(torch.uint8), engine.kv.bytes(0, CHUNK))


def test_a_closed_plug_in_misses(engine: Engine) -> None:
    engine.store(TOKENS)
    engine.manager.storage_backends[PLUGIN].close()
    asked_of_nobody(engine)
    engine.plugin.close()
