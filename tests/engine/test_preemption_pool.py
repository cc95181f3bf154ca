"""Answers that give way on a real pool: they come back from it, and whoever asked hears that they
wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore.engine.worker as engine_worker
from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory
from kvstore.engine.core import EngineCore, FinishEvent, TokenEvent
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Request
from kvstore.engine.worker import Job, Waits, Worker
from tests.engine.asks import SECONDS, Run, check
from tests.engine.runs import prompt
from tests.engine.teams import TeamEngine
from tests.engine.test_preemption import LONG, SMALL


class Gate:
    """Keeps workers from what they are asked until it is opened, so that they take it at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._open, obey = threading.Event(), Worker._obey

        def obey_in_time(worker: Worker) -> None:
            assert self._open.wait(SECONDS)
            obey(worker)

        patch.setattr(Worker, "_obey", obey_in_time)

    def ask(self, worker: Worker, first: list[int], second: list[int], **wishes: Any) -> list[Run]:
        """Of two, the second gives way."""
        runs = [Run(PoolUse(**wishes)) for _ in range(2)]
        for name, tokens, run in zip("ab", (first, second), runs, strict=True):
            asked = Request(name, tuple(tokens), LONG, ignore_eos=True)
            run.job = Job(asked, run.use, run.events.put)
            worker.submit(run.job)
        self._open.set()
        return runs


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def worker(gate: Gate, node: Stack, model: Model, model_dir: Path) -> Iterator[Worker]:
    """Of an engine of one rank, on a real pool."""
    where = InDirectory(node.children["node"].log.parent)
    with Client(where, spec_of(model_dir), deadline_seconds=20.0) as client:
        core = EngineCore(model, SMALL)
        worker = Worker(core, Pool(client, core.cache))
        worker.start()
        yield worker
        worker.stop(5.0)
    check(node)


def test_what_gave_way_comes_back_from_the_pool(
    gate: Gate, worker: Worker, reference: Reference
) -> None:
    loaded = list[int]()
    landed = worker.pool._landed

    def noted(use: PoolUse) -> int | None:
        loaded.append(tokens := landed(use) or 0)
        return tokens

    worker.pool._landed = noted  # type: ignore[method-assign]
    first, second = prompt(60, seed=11), prompt(60, seed=12)
    outputs = [run.finish() for run in gate.ask(worker, first, second)]
    assert outputs == [reference.tokens(one, LONG) for one in (first, second)]
    assert loaded == [0, 0, 192], "both at first, and then all whole blocks of the one's answer"
    totals = worker.telemetry.totals()
    assert totals["preemptions"] == 1 and worker.pool.failures == 0
    assert totals["output_tokens"] == 2 * LONG
    computed = worker.telemetry.values("prompt_tokens")
    assert computed == {"pool": 0, "computed": 120}, "nothing is counted as a prompt twice"


def test_who_does_without_the_pool_does_so_behind_a_preemption_too(
    gate: Gate, worker: Worker, reference: Reference
) -> None:
    first, second = prompt(60, seed=13), prompt(60, seed=14)
    outputs = [run.finish() for run in gate.ask(worker, first, second, enabled=False)]
    assert outputs == [reference.tokens(one, LONG) for one in (first, second)]
    assert worker.telemetry.totals()["preemptions"] == 1
    client = worker.pool._client
    assert client.match(client.chain(second)).blocks == 0


def test_one_that_waits_again_is_not_refused_for_the_time_by_which_it_was_to_begin(
    gate: Gate, worker: Worker, reference: Reference
) -> None:
    first, second = prompt(60, seed=15), prompt(60, seed=16)
    _, late = gate.ask(worker, first, second)
    while not isinstance(event := late.events.get(timeout=SECONDS), TokenEvent):
        pass
    assert late.job is not None
    late.job.begin_by = time.monotonic()
    late.tokens.append(event.token)
    assert late.finish() == reference.tokens(second, LONG)
    assert worker.telemetry.totals()["preemptions"] == 1


def test_who_waits_again_hears_now_and_then_that_it_waits(
    gate: Gate, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_worker, "WAITS_SECONDS", 0.0)
    first, second = gate.ask(worker, prompt(60, seed=19), prompt(60, seed=20))
    heard = [list[object](), list[object]()]
    for run, events in zip((first, second), heard, strict=True):
        while not isinstance(event := run.events.get(timeout=SECONDS), FinishEvent):
            events.append(event)
    waited = [sum(isinstance(event, Waits) for event in events) for events in heard]
    assert waited[0] == 0 and waited[1] > 50, "all the steps that the first one had alone"


def test_ranks_give_way_together(
    gate: Gate, node: Stack, model_dir: Path, reference: Reference
) -> None:
    where, spec = InDirectory(node.children["node"].log.parent), spec_of(model_dir)
    clients = [Client(where, spec, deadline_seconds=20.0) for _ in range(2)]
    engine = TeamEngine(model_dir, clients, SMALL)
    try:
        first, second = prompt(60, seed=17), prompt(60, seed=18)
        outputs = [run.finish() for run in gate.ask(engine.worker, first, second)]
        assert outputs == [reference.tokens(one, LONG) for one in (first, second)]
        assert engine.worker.telemetry.totals()["preemptions"] == 1 and not engine.errors
    finally:
        engine.close()
    check(node)
