"""No engine dies of the pool: a node that is gone is a miss, in bounded time, said once."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.connectors.sglang.engine import Engine, fill, mha_pool, mla_pool
from tests.nodes import NodeProcess, eventually

KEYS = ["a" * 64, "b" * 64]
FAR_BEYOND_ANY_DEADLINE = 15.0
DEADLINE_MS = 500


@pytest.fixture
def engine(node: NodeProcess) -> Iterator[Engine]:
    made = Engine(mha_pool("page_first"), moonpool=node.address, deadline_ms=DEADLINE_MS)
    fill(made.pool, 1)
    yield made
    made.storage.close()


def asked_of_nobody(engine: Engine) -> None:
    """Every call ends, with nothing."""
    begun, storage = time.monotonic(), engine.storage
    flat = engine.pool.get_data_page(0)
    assert engine.load(KEYS, 2, 3) == [False, False]
    assert engine.store(KEYS, 0, 1) == [False, False]
    assert storage.batch_exists(KEYS) == 0 and not storage.exists(KEYS[0])
    assert storage.batch_get(KEYS, [torch.empty_like(flat)] * 2) == [None, None]
    assert storage.get(KEYS[0]) is None
    assert storage.batch_set(KEYS, [flat, flat]) is False and storage.set(KEYS[0], flat) is False
    assert time.monotonic() - begun < FAR_BEYOND_ANY_DEADLINE


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.message.startswith("Moonpool")]


def test_a_killed_node_is_a_miss_and_is_said_once(
    node: NodeProcess, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert engine.store(KEYS, 0, 1) == [True, True]
    assert told(caplog) == []
    node.kill()
    for _ in range(3):
        asked_of_nobody(engine)
    assert len(told(caplog)) == 1 and node.address in told(caplog)[0], told(caplog)


def test_a_node_that_stopped_answering_is_a_miss_by_the_deadline_and_comes_back(
    node: NodeProcess, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    engine.store(KEYS, 0, 1)
    node.signal(signal.SIGSTOP)
    asked_of_nobody(engine)
    node.signal(signal.SIGCONT)
    assert eventually(lambda: engine.load(KEYS, 2, 3) == [True, True])
    assert len(told(caplog)) == 2 and "answers again" in told(caplog)[1], told(caplog)


def test_an_engine_starts_without_a_node_and_finds_it_when_it_comes(home: Path) -> None:
    engine = Engine(mha_pool("page_first"), moonpool=str(home), deadline_ms=DEADLINE_MS)
    try:
        asked_of_nobody(engine)
        started = NodeProcess(home).start()
        try:
            assert eventually(lambda: engine.store(KEYS, 0, 1) == [True, True])
            assert engine.storage.batch_exists(KEYS) == 2
        finally:
            started.close()
    finally:
        engine.storage.close()


def test_a_closed_backend_has_nothing(engine: Engine) -> None:
    engine.store(KEYS, 0, 1)
    engine.storage.close()
    asked_of_nobody(engine)
    engine.storage.close()


def test_after_a_clear_nothing_stored_before_hits_and_others_keep_theirs(
    node: NodeProcess, engine: Engine
) -> None:
    other = Engine(mha_pool("page_first"), moonpool=node.address)
    try:
        engine.store(KEYS, 0, 1)
        engine.storage.clear()
        assert engine.storage.batch_exists(KEYS) == 0
        assert engine.load(KEYS, 2, 3) == [False, False]
        assert engine.store(KEYS, 0, 1) == [True, True]
        assert engine.storage.batch_exists(KEYS) == 2
        assert other.storage.batch_exists(KEYS) == 2
        engine.storage.clear()
        assert engine.storage.batch_exists(KEYS) == 0, "nor what was stored after the last one"
    finally:
        other.storage.close()


def test_a_backend_that_is_attached_anew_after_a_clear_hits_nothing_stored_before(
    node: NodeProcess, engine: Engine
) -> None:
    engine.store(KEYS, 0, 1)
    engine.storage.clear()
    engine.storage.close()
    again = Engine(mha_pool("page_first"), moonpool=node.address)
    try:
        assert again.storage.batch_exists(KEYS) == 0
        assert again.store(KEYS, 0, 1) == [True, True]
        assert again.storage.batch_exists(KEYS) == 2
    finally:
        again.storage.close()
    other = Engine(mha_pool("page_first"), moonpool=node.address, namespace_extra="more")
    try:
        assert "cleared" in other.storage._client.space.spec.revision, "its weights are as unknown"
    finally:
        other.storage.close()


def test_a_clear_that_fails_leaves_nothing_that_was_stored_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang logs what is raised and says that it was done: new weights come then."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("nothing can be named")

    engine.store(KEYS, 0, 1)
    monkeypatch.setattr("kvstore.engine.connectors.sglang.storage.secrets.token_hex", broken)
    with pytest.raises(RuntimeError):
        engine.storage.clear()
    asked_of_nobody(engine)


def test_weights_of_the_longest_name_can_be_cleared(node: NodeProcess) -> None:
    engine = Engine(mha_pool("page_first"), moonpool=node.address, revision="r" * 1_000)
    try:
        assert engine.store(KEYS, 0, 1) == [True, True]
        engine.storage.clear()
        assert engine.storage.batch_exists(KEYS) == 0 and engine.store(KEYS, 0, 1) == [True, True]
    finally:
        engine.storage.close()


def test_ranks_that_share_a_latent_go_without_the_pool_after_a_clear(node: NodeProcess) -> None:
    """Until they are told of weights by another name, which all of them are."""
    engine = Engine(mla_pool("page_first"), moonpool=node.address, tp=(0, 2))
    try:
        assert engine.store(KEYS, 0, 1) == [True, True]
        engine.storage.clear()
        asked_of_nobody(engine)
        engine.storage.clear()
    finally:
        engine.storage.close()
    for revision, stored in (("r1", False), ("r2", True)):
        again = Engine(mla_pool("page_first"), moonpool=node.address, tp=(0, 2), revision=revision)
        try:
            assert again.storage.batch_exists(KEYS) == 0
            assert again.store(KEYS, 0, 1) == [stored, stored]
        finally:
            again.storage.close()
