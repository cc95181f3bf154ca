"""A machine that has no thread to give costs the pool chunks, and LMCache nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.connectors.lmcache.engine import CHUNK, Engine

TOKENS = [1] * 3 * CHUNK
Engines = Callable[..., Engine]


@pytest.fixture
def no_threads(monkeypatch: Any) -> Any:
    """Lets nobody start another of the plug-in's threads, until it is undone."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith(("moonpool-load", "moonpool-store")):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        yield patched


def test_chunks_that_no_thread_can_store_are_given_back_and_later_ones_are_stored(
    engine_of: Engines, no_threads: Any
) -> None:
    ours = engine_of(revision="no thread", pending_chunks=3)
    ours.kv.fill(1)
    for _ in range(2):
        ours.store(TOKENS)
        assert ours.memory_in_use == 0
    no_threads.undo()
    assert ours.lookup(TOKENS) == 0
    ours.kv.fill(2)
    ours.store(TOKENS)
    assert ours.memory_in_use == 0
    theirs = engine_of(revision="no thread")
    assert theirs.retrieve(TOKENS) == len(TOKENS)
    assert torch.equal(theirs.kv.bytes(0, len(TOKENS)), ours.kv.bytes(0, len(TOKENS)))


def test_a_load_that_no_thread_can_begin_is_a_miss_that_no_other_thread_comes_to(
    engine_of: Engines, monkeypatch: Any
) -> None:
    ours = engine_of(revision="one thread")
    ours.store(TOKENS)
    first, second, third = ours.keys(TOKENS)
    load, entered, go_on = ours.plugin._node.load, threading.Event(), threading.Event()
    begun: list[str] = []

    def held_up(names: Any, chunks: Any) -> Any:
        begun.extend(names)
        entered.set()
        assert go_on.wait(20)
        return load(names, chunks)

    monkeypatch.setattr(ours.plugin._node, "load", held_up)
    under_way = ours.plugin.get_non_blocking(first)
    assert entered.wait(20)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert ours.plugin.get_non_blocking(second) is None
    go_on.set()
    under_way.result(20).ref_count_down()
    ours.plugin.get_non_blocking(third).result(20).ref_count_down()
    ours.plugin.close()  # ends when all is done that waited
    assert begun == [first.to_string(), third.to_string()]
    assert ours.memory_in_use == 0
