"""Answers longer than what pages are reserved for: they take pages as they go on, and where none
are free the last to enter waits, and goes on later where it was."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory
from kvstore.engine.core import EngineCore, EngineSettings, Event, FinishEvent, TokenEvent
from kvstore.engine.hooks import NoHooks
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Chunk, Request
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.telling import Telling
from kvstore.engine.worker import Job, Worker
from tests.engine.asks import SECONDS, Run, check
from tests.engine.runs import finish, prompt, request
from tests.engine.teams import TeamEngine
from tests.engine.test_telling import Heard

# Room for 384 tokens. Each of two takes 2 pages for a prompt of 60 and the first of its answer, and
# would have 5.
SMALL = EngineSettings(pages=6, answer_tokens=64)
A, B, LONG = prompt(60, seed=1), prompt(60, seed=2), 200


class Diary(NoHooks):
    """Writes down who enters, gives way and ends, and what is computed of it."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.lines: list[str] = []
        self.computed: list[tuple[str, int, int]] = []
        core.hooks = self

    def admitted(self, sequence: Running) -> int:
        self.lines.append(f"{sequence.id} enters with {len(sequence.tokens)} tokens")
        return 0

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self.computed += [(one.sequence.id, one.start, one.end) for one in chunks]

    def preempted(self, sequence: Running) -> None:
        table = self._core.cache.allocator.table(sequence.id)
        assert table is sequence.block_table and sequence.remaining == 1
        self.lines.append(f"{sequence.id} gives way with {sequence.computed_tokens} computed")

    def finished(self, sequence: Running) -> None:
        self.lines.append(f"{sequence.id} ends")


def until_b_gives_way(core: EngineCore) -> list[Event]:
    events: list[Event] = []
    while (b := core.scheduler.find("b")) is not None and not b.preempted:
        events += core.step()
    assert b is not None and b in core.scheduler.waiting
    return events


def test_of_two_long_answers_the_later_one_gives_way_and_both_are_right(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(request(A, LONG, "a"))
    core.add(request(B, LONG, "b"))
    outputs = finish(core)
    assert outputs == {"a": reference.tokens(A, LONG), "b": reference.tokens(B, LONG)}
    assert diary.lines == [
        "a enters with 60 tokens",
        "b enters with 60 tokens",
        "b gives way with 192 computed",  # each has 3 pages, and a needs a 4th
        "a ends",
        "b enters with 193 tokens",
        "b ends",
    ]
    again = [one for one in diary.computed if one[0] == "b"][133:]
    assert again[0] == ("b", 0, 193), "in one step, whose token is the next of its answer"


def test_an_answer_for_which_there_are_pages_from_the_start_never_gives_way(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(request(A, LONG, "long"))
    events = core.step()
    for number in range(4):
        core.add(request(prompt(60, seed=number + 2), 64, f"short {number}"))
    outputs = finish(core, events)
    assert outputs["long"] == reference.tokens(A, LONG)
    assert [line for line in diary.lines if "gives way" in line] == [
        "long gives way with 128 computed"
    ]


def test_who_gave_way_enters_before_those_that_are_due_when_it_is_or_later(model: Model) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(request(A, LONG, "a"))
    core.add(request(B, LONG, "b"))
    while not any("gives way" in line for line in diary.lines):
        core.step()
        if len(core.scheduler.waiting) == 0 and core.scheduler.find("later") is None:
            core.add(request(prompt(200, seed=3), 4, "later"))
    finish_order = [line.split(" ")[0] for line in _to_the_end(core, diary) if "enters" in line]
    assert finish_order == ["a", "b", "b", "later"]


def _to_the_end(core: EngineCore, diary: Diary) -> list[str]:
    while not core.idle:
        core.step()
    return diary.lines


def test_one_that_waits_again_can_be_aborted_and_the_hooks_hear_of_it(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(request(A, LONG, "a"))
    core.add(request(B, LONG, "b"))
    events = until_b_gives_way(core)
    assert core.abort("b") and diary.lines[-1] == "b ends"
    assert core.cache.allocator.free == 2
    events = [one for one in events if one.request_id == "a"]
    assert finish(core, events) == {"a": reference.tokens(A, LONG)}


def test_tokens_go_on_where_they_were_and_its_prompts_share_of_the_pool_is_said_once(
    model: Model,
) -> None:
    class Had(NoHooks):
        """Some of a prompt, and later less of it."""

        def admitted(self, sequence: Running) -> int:
            return 0 if sequence.preempted else 48

    core = EngineCore(model, SMALL, Had())
    for name in "ab":
        core.add(request(A if name == "a" else B, LONG, name))
    events = []
    while not core.idle:
        events += core.step()
    of_b = [one for one in events if one.request_id == "b"]
    indexes = [one.index for one in of_b if isinstance(one, TokenEvent)]
    assert indexes == [*range(LONG)]
    last = of_b[-1]
    assert isinstance(last, FinishEvent) and last.cached_tokens == 48


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_every_answer_is_right_and_no_page_is_lost(
    model: Model, reference: Reference, seed: int
) -> None:
    dice = random.Random(seed)
    settings = EngineSettings(
        pages=dice.randint(4, 7), max_batch_tokens=96, max_running=4, answer_tokens=32
    )
    core = EngineCore(model, settings)
    diary = Diary(core)
    wanted = {}
    for number in range(6):
        tokens, new = prompt(dice.randint(1, 90), seed=seed), dice.choice([30, 120, 160])
        tokens[0] = number  # of their own, and few enough kinds for the reference
        wanted[f"{number}"] = (tokens, new)
    events, left = [], [*wanted]
    while left or not core.idle:
        if left and dice.random() < 0.3:
            name = left.pop(0)
            core.add(request(*wanted[name], name))
        events += core.step()
        core.cache.check()
    outputs = finish(core, events)
    for name, (tokens, new) in wanted.items():
        assert outputs[name] == reference.tokens(tokens, new), name
    assert any("gives way" in line for line in diary.lines)


def test_conductors_hear_of_one_request_that_decodes_less_while_it_waits(model: Model) -> None:
    core, heard = EngineCore(model, SMALL), Heard()
    core.hooks = Telling(NoHooks(), heard)
    for name in "ab":
        core.add(request(A if name == "a" else B, LONG, name))
    until_b_gives_way(core)
    assert heard.loads[-1][0] == 1, "b holds nothing"
    while not core.idle:
        core.step()
    for what in ("began", "ended", "decoding"):
        assert heard.said.count((what, "b")) == 1
    assert heard.outputs == [LONG, LONG] and heard.loads[-1] == (0, 0)


def test_conductors_hear_that_one_is_over_which_is_aborted_while_it_waits_again(
    model: Model,
) -> None:
    core, heard = EngineCore(model, SMALL), Heard()
    core.hooks = Telling(NoHooks(), heard)
    for name in "ab":
        core.add(request(A if name == "a" else B, LONG, name))
    until_b_gives_way(core)
    core.abort("b")
    assert len(heard.outputs) == 1 and heard.loads[-1][0] == 1


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
